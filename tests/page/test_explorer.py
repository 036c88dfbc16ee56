"""What the page computes and draws, without Gradio: small models of every system, a detector, pictures, legends."""

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmdet.structures import INSTANCE_OFFSET
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from bioattn_mm import Predictor
from bioattn_mm.analysis.attention import ATTENTION, Panel, weight_per_pixel
from bioattn_mm.analysis.figures import draw_heat
from bioattn_mm.errors import InputError
from bioattn_mm.inference.predictor import arrays_of
from bioattn_mm.page import pictures
from bioattn_mm.page.explorer import MAX_SIDE, PHOTOGRAPH, Explorer
from bioattn_mm.runtime.predictions import Detections

from ..analysis.small_backbones import BACKBONES
from ..tools.random_weights import random_checkpoint
from . import small_models
from .small_models import save_segmentor

TOOLS = Path(__file__).parents[1] / 'tools'


@pytest.fixture
def image(tmp_path: Path) -> str:
    """A file of 40 x 60 pixels, left half darker than the right one."""
    values = np.random.default_rng(0).integers(0, 128, (40, 60, 3), dtype=np.uint8)
    values[:, 30:] += 127
    cv2.imwrite(str(tmp_path / 'image.png'), values)
    return str(tmp_path / 'image.png')


def explorer_of(config: str, checkpoint: str, **options) -> Explorer:
    return Explorer(Predictor(config, checkpoint, device='cpu', **options))


@pytest.fixture
def segmentor(tmp_path: Path) -> Explorer:
    return explorer_of(*save_segmentor(tmp_path, 'ConViT'))


def of_random_weights(name: str, folder: Path) -> Explorer:
    """The page for a config beside tests/tools."""
    random_checkpoint(folder / 'random.pth', TOOLS / name)
    return explorer_of(str(TOOLS / name), str(folder / 'random.pth'), mini=True)


@pytest.mark.parametrize('name', BACKBONES)
def test_every_system(name: str, image: str, tmp_path: Path) -> None:
    explorer = explorer_of(*save_segmentor(tmp_path, name))
    prediction = explorer.predict(image)
    assert prediction.sample.pred_sem_seg.data.shape == (1, 40, 60)
    assert prediction.prepared.inputs.shape == (1, 3, 64, 96)
    for layer in list(explorer.layers)[::3]:
        attention = explorer.attention(image, layer, (20, 45))
        assert list(attention.parts) == explorer.layers[layer][0]
        # The pixel is at row 32 and column 72 of the input.
        assert attention.token == (32 // attention.stride, 72 // attention.stride)
        weights = weight_per_pixel(attention.parts[ATTENTION], None, (64, 96))
        if name in ('TransNeXt', 'GABViT', 'PerViT'):
            assert weights.min() >= 0 and weights.sum() == pytest.approx(1, abs=1e-3)
        elif name != 'VARS':  # some is of the class token and of the padding of windows; that of VARS can be negative
            assert weights.min() >= 0 and 0.5 < weights.sum() < 1.001
    fields = explorer.fields(image, (20, 45))
    assert [field.shape for field in fields] == [(64, 96)] * len(explorer.outputs)
    assert all(field.max() > 0 for field in fields)


def test_predicts_as_the_predictor_does(image: str, tmp_path: Path) -> None:
    """Whole images, although the config slides a window."""
    files = save_segmentor(tmp_path, 'TransNeXt')
    ((whole,), (slid,)) = (Predictor(*files, device='cpu', mode=mode)(image) for mode in ('whole', 'slide'))
    samples = (explorer_of(*files).predict(image).sample, whole, slid)
    labels, whole, slid = (sample.pred_sem_seg.data for sample in samples)
    assert torch.equal(labels, whole) and not torch.equal(whole, slid) and len(whole.unique()) > 1


def test_detector(image: str, tmp_path: Path) -> None:
    explorer = of_random_weights('mask_rcnn_small.py', tmp_path)
    result, predictor = explorer.predict(image).result, explorer.predictor
    assert len(result.scores)
    kept = result.keep(result.scores >= np.median(result.scores))
    legend = pictures.legend_of(kept, predictor)
    counts = np.bincount(kept.labels)
    assert legend.count('class="entry"') == (counts > 0).sum()
    assert f'{predictor.classes[counts.argmax()]} {counts.max()}</span>' in legend
    assert 'nothing found' in pictures.legend_of(result.keep(result.scores > 1), predictor)

    picture, size = pictures.fit(explorer.read(image)[..., ::-1]), (40, 60)
    boxes = kept.boxes.copy()
    drawn = pictures.draw_prediction(picture, kept, size, predictor, 1.0)
    assert drawn.shape == picture.shape == (533, 800, 3) and (drawn != picture).any()
    assert (pictures.draw_prediction(picture, kept, size, predictor, 0) == picture).all()
    # The same again: mmdet's own drawing has other colours in every call.
    assert (drawn == pictures.draw_prediction(picture, kept, size, predictor, 1.0)).all()
    assert (kept.boxes == boxes).all() and kept.masks.shape[1:] == size
    # Boxes have the names where there are no masks; the smallest lie on top.
    box, inner = np.float32([[0, 0, 60, 20], [15, 5, 30, 10]]), dict(scores=np.float32([0.5, 0.25]), masks=None)
    page = pictures.with_names(picture, Detections(box[::-1], labels=np.array([1, 0]), **inner), size, ['a<b', 'c'])
    first, second = re.findall('<polygon points="(.*?)"><title>(.*?)</title>', page)
    assert (first[1], second[1]) == ('a&lt;b 0.25', 'c 0.50')
    x, y = np.array(second[0].split(), float).reshape(-1, 2).T
    np.testing.assert_allclose((x.min(), y.min(), x.max(), y.max()), (200, 66.6, 400, 133.3), atol=2)

    overlay, document = explorer.write(image, 0.0, tmp_path / 'written')
    assert cv2.imread(str(overlay)).shape == (40, 60, 3) and overlay.name == 'image_overlay.png'
    written = json.loads(document.read_text())
    assert len(written['annotations']) == len(result.scores) and written['images'][0]['file_name'] == 'image.png'
    attention = explorer.attention(image, next(iter(explorer.layers)), (39, 59))
    assert attention.token[0] < attention.grid[0] and attention.token[1] < attention.grid[1]


def test_prediction_of_a_segmentor_as_a_layer(image: str, segmentor: Explorer) -> None:
    result, predictor, size = segmentor.predict(image).result, segmentor.predictor, (40, 60)
    picture = pictures.fit(segmentor.read(image)[..., ::-1])
    drawn = pictures.draw_prediction(picture, result, size, predictor, 1.0)
    values, counts = np.unique(result.labels, return_counts=True)
    assert {tuple(color) for color in drawn.reshape(-1, 3)} == {tuple(predictor.palette[value]) for value in values}
    half = pictures.draw_prediction(picture, result, size, predictor, 0.5)
    np.testing.assert_allclose(half, (drawn.astype(float) + picture) / 2, atol=1)
    legend = pictures.legend_of(result, predictor)
    assert legend.count('class="entry"') == len(values)
    assert f'{predictor.classes[values[counts.argmax()]]} {100 * counts.max() / (40 * 60):.1f} %' in legend

    # The model has one class, which a quarter of the pixels have.
    predictor.classes, predictor.palette = ['road'], [[1, 2, 3]]
    result.labels[:, :15], result.labels[:, 15:] = 0, 1
    drawn = pictures.draw_prediction(picture, result, size, predictor, 1.0)
    assert (drawn[:, :200] == [1, 2, 3]).all() and (drawn[:, 200:] == picture[:, 200:]).all()
    assert pictures.legend_of(result, predictor).count('road 25.0 %</span>') == 1
    page = pictures.with_names(picture, result, size, predictor.classes)
    assert re.findall('<title>.*?</title>', page) == ['<title>road 25.0 %</title>']


def test_prediction_of_a_panoptic_model_as_a_layer(image: str, tmp_path: Path) -> None:
    explorer = of_random_weights('mask2former_panoptic_small.py', tmp_path)
    result, predictor, size = explorer.predict(image).result, explorer.predictor, (40, 60)
    segments = result.segments
    assert segments.shape == size
    # What random weights find is drawn over by two persons, sand below at the right, and nothing above it.
    person, sand = (predictor.classes.index(name) for name in ('person', 'sand'))
    segments[:, :15], segments[:, 15:30] = (person + number * INSTANCE_OFFSET for number in (1, 2))
    segments[20:, 30:], segments[:20, 30:] = sand, len(predictor.classes)
    legend = pictures.legend_of(result, predictor)
    assert legend.count('class="entry"') == 2
    assert legend.index('person 2</span>') < legend.index('sand 1</span>')

    picture = pictures.fit(explorer.read(image)[..., ::-1])
    drawn = pictures.draw_prediction(picture, result, size, predictor, 1.0)
    assert drawn.shape == picture.shape == (533, 800, 3)
    changed = (drawn != picture).any(-1)
    assert changed[:, :390].mean() > 0.9 and changed[280:, 410:].mean() > 0.9 and changed[:250, 410:].mean() < 0.1
    assert (pictures.draw_prediction(picture, result, size, predictor, 0) == picture).all()
    page = pictures.with_names(picture, result, size, predictor.classes)
    shares = sorted(re.findall('<title>(.*?) (.*?) %</title>', page))
    assert [name for name, _ in shares] == ['person', 'person', 'sand']
    np.testing.assert_allclose([float(share) for _, share in shares], 25, atol=0.5)


def test_weight_per_pixel_adds_keys_of_different_sizes() -> None:
    window = Panel('window', np.array([[[0.1, np.nan]], [[0.3, 0.1]]], np.float32), (4, 12, 8, 4))
    pooled = Panel('pooled', np.array([[[0.9]], [[0.6]]], np.float32), (0, 16, 16, 0))
    weights = weight_per_pixel([window, pooled], 1, (14, 16))
    assert weights[5, 5] == pytest.approx(0.3 / 16 + 0.6 / 256)
    assert weights[5, 9] == pytest.approx(0.1 / 16 + 0.6 / 256)
    assert weights[13, 15] == weights[3, 4] == pytest.approx(0.6 / 256)
    mean = weight_per_pixel([window], None, (14, 16))
    assert mean[4, 4] == pytest.approx(0.2 / 16) and mean.sum() == pytest.approx(0.25)
    with pytest.raises(InputError, match='the head must be 0 to 1 in this layer, got 2'):
        weight_per_pixel([window], 2, (14, 16))


def test_pixels_of_pictures() -> None:
    assert pictures.fitted_size((40, 60)) == (533, 800) and pictures.fitted_size((1, 5000)) == (1, 800)
    assert pictures.file_pixel((0, 799), (533, 800), (40, 60)) == (0, 59)
    assert pictures.file_pixel((266, 400), (533, 800), (40, 60)) == (20, 30)
    assert pictures.file_pixel((533, -1), (533, 800), (40, 60)) == (39, 0)
    assert pictures.file_pixel((10, 20), pictures.fitted_size((3000, 2000)), (3000, 2000)) == (39, 76)


def test_heat_and_marks() -> None:
    picture = np.full((200, 400, 3), 128, np.uint8)
    heat = np.zeros((5, 10))
    heat[2, 3] = 1
    drawn = draw_heat(picture, heat)
    assert (drawn[80:120, 120:160] == drawn[100, 140]).all() and (drawn[79, 119] == drawn[0, 0]).all()
    assert drawn[100, 140].sum() > 2 * drawn[0, 0].sum() > 0
    marked = pictures.mark(picture, (3, 2, 4, 3), (5, 10))
    changed = np.argwhere((marked != picture).any(-1))
    assert (changed.min(0) <= (80, 120)).all() and (changed.max(0) >= (120, 160)).all()
    assert (changed.min(0) >= (74, 114)).all() and (changed.max(0) <= (126, 166)).all()
    assert {tuple(color) for color in marked[tuple(changed.T)].tolist()} == {(0, 0, 0), pictures.MARK}
    crossed = np.argwhere((pictures.mark_pixel(picture, (2, 3), (5, 10)) != picture).any(-1))
    np.testing.assert_allclose(crossed.mean(0), (100, 140), atol=1)
    field = np.full((8, 8), 1e-9)
    field[:4, :4], field[4:, 4:] = 1.0, np.sqrt(1e-3)
    np.testing.assert_allclose(pictures.field_heat(field), [[1, 0], [0, 0.5]], atol=1e-6)


def test_examples(tmp_path: Path, segmentor: Explorer) -> None:
    """The first images of the config's validation set, where it is there, and the photograph."""
    assert segmentor.examples() == [PHOTOGRAPH] and cv2.imread(str(PHOTOGRAPH)) is not None
    dataset = dict(data_root=str(tmp_path), data_prefix=dict(img_path='images'))
    segmentor.predictor.config.val_dataloader = dict(dataset=dataset)
    assert segmentor.examples() == [PHOTOGRAPH]
    (tmp_path / 'images').mkdir()
    for number in range(5):
        cv2.imwrite(str(tmp_path / f'images/{number}.png'), np.zeros((8, 8, 3), np.uint8))
    assert segmentor.examples() == [*(tmp_path / f'images/{number}.png' for number in range(3)), PHOTOGRAPH]


def test_large_images_are_shrunk_and_bad_ones_refused(tmp_path: Path, segmentor: Explorer) -> None:
    large, thin, line, text = (str(tmp_path / f'{name}.png') for name in ('large', 'thin', 'line', 'text'))
    cv2.imwrite(large, np.zeros((30, 2 * MAX_SIDE, 3), np.uint8))
    assert segmentor.read(large).shape == (15, MAX_SIDE, 3)
    cv2.imwrite(thin, np.zeros((1, 500, 3), np.uint8))
    cv2.imwrite(line, np.zeros((1, 1500, 3), np.uint8))
    Path(text).write_text('no image')
    for path, message in (
        (thin, 'H and W of at least 32 pixels'),
        (line, 'cannot be resized to what the model'),
        (text, 'cannot decode the image .*text.png'),
    ):
        with pytest.raises(InputError, match=message):
            segmentor.predict(path)


def test_a_segmentor_of_one_output_channel(image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = small_models.CONFIG.replace('num_classes=150', 'num_classes=2, out_channels=1, threshold=0.3')
    dataset = "type='BaseSegDataset', metainfo=dict(classes=('field', 'road'), palette=[[0, 90, 0], [90, 90, 90]])"
    monkeypatch.setattr(small_models, 'CONFIG', text.replace("type='ADE20KDataset'", dataset))
    explorer = explorer_of(*save_segmentor(tmp_path, 'ConViT'))
    prediction, (alone,) = explorer.predict(image), explorer.predictor(image)
    for sample in (prediction.sample, alone):
        assert sample.pred_sem_seg.data.unique().tolist() == [0, 1]
        assert 'field' in pictures.legend_of(arrays_of(sample), explorer.predictor)
    explorer.write(image, 0.5, tmp_path / 'out')
    labels = cv2.imread(str(tmp_path / 'out/labels/image.png'))
    assert np.array_equal((labels == 90).all(-1), prediction.result.labels == 1)


def test_refuses_models_that_it_cannot_look_into(tmp_path: Path) -> None:
    config, checkpoint = save_segmentor(tmp_path, 'ConViT')
    text = Path(config).read_text()
    resnet = "    backbone=dict(type='ResNet', depth=18, out_indices=(3,)),\n"
    of_resnet = re.sub('    backbone=.*\n', resnet, text).replace('in_channels=16', 'in_channels=512')
    load = "dict(type='bioattn_mm.LoadChannelsFromFile', channels=3, dtype='uint16')"
    of_16_bits = text.replace("dict(type='LoadImageFromFile')", load)
    classifier = f"_base_ = '{TOOLS}/convit_small.py'"
    for content, message in (
        (of_resnet, 'has the backbone ResNet: expected a subclass of Backbone'),
        (of_16_bits, 'takes images of 3 channels of uint16, and the page shows RGB in 8 bits'),
        (classifier, 'convit.py is a classifier: the page is for detectors and segmentors'),
    ):
        Path(config).write_text(content)
        model = Config.fromfile(config)
        with DefaultScope.overwrite_default_scope(model.default_scope):
            torch.save(dict(state_dict=MODELS.build(model.model).state_dict()), checkpoint)
        with pytest.raises(InputError, match=message):
            explorer_of(config, checkpoint)
