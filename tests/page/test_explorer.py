"""What the page computes, without Gradio: small models of every system, and a detector."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from bioattn_mm import Predictor
from bioattn_mm.analysis.attention import ATTENTION, weight_per_pixel
from bioattn_mm.errors import InputError
from bioattn_mm.inference.predictor import arrays_of
from bioattn_mm.page import pictures
from bioattn_mm.page.explorer import MAX_SIDE, PHOTOGRAPH, Explorer

from ..analysis.small_backbones import BACKBONES, save_segmentor
from ..runtime.comparison import image_of
from ..tools.random_weights import random_checkpoint
from ..tools.running import ROOT


@pytest.fixture
def image(tmp_path: Path) -> str:
    cv2.imwrite(str(tmp_path / 'image.png'), image_of(40, 60))
    return str(tmp_path / 'image.png')


def explorer_of(config: str, checkpoint: str, **options) -> Explorer:
    return Explorer(Predictor(config, checkpoint, device='cpu', **options))


@pytest.fixture
def segmentor(tmp_path: Path) -> Explorer:
    return explorer_of(*save_segmentor(tmp_path, 'ConViT'))


def of_random_weights(name: str, folder: Path) -> Explorer:
    """The page for a config of tests/tools."""
    config = str(ROOT / 'tests/tools' / name)
    random_checkpoint(folder / 'random.pth', config)
    return explorer_of(config, str(folder / 'random.pth'), mini=True)


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
            assert weights.min() >= 0 and 0.3 < weights.sum() < 1.001
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
    number = len(explorer.predict(image).result.scores)
    overlay, document = explorer.write(image, 0.0, tmp_path / 'written')
    assert cv2.imread(str(overlay)).shape == (40, 60, 3) and overlay.name == 'image_overlay.png'
    written = json.loads(document.read_text())
    assert len(written['annotations']) == number > 0 and written['images'][0]['file_name'] == 'image.png'
    attention = explorer.attention(image, next(iter(explorer.layers)), (39, 59))
    assert attention.token[0] < attention.grid[0] and attention.token[1] < attention.grid[1]


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


def test_a_segmentor_of_one_output_channel(image: str, tmp_path: Path) -> None:
    metainfo = dict(classes=('field', 'road'), palette=[[0, 90, 0], [90, 90, 90]])
    changes = {
        'model.decode_head': dict(num_classes=2, out_channels=1, threshold=0.3),
        'test_dataloader.dataset': dict(type='BaseSegDataset', metainfo=metainfo),
    }
    explorer = explorer_of(*save_segmentor(tmp_path, 'ConViT', changes))
    prediction, (alone,) = explorer.predict(image), explorer.predictor(image)
    for sample in (prediction.sample, alone):
        assert sample.pred_sem_seg.data.unique().tolist() == [0, 1]
        assert 'field' in pictures.legend_of(arrays_of(sample), explorer.predictor)
    explorer.write(image, 0.5, tmp_path / 'out')
    labels = cv2.imread(str(tmp_path / 'out/labels/image.png'))
    assert np.array_equal((labels == 90).all(-1), prediction.result.labels == 1)


def test_refuses_models_that_it_cannot_look_into(tmp_path: Path) -> None:
    resnet = dict(_delete_=True, type='ResNet', depth=18, out_indices=(3,))
    load = dict(_delete_=True, type='bioattn_mm.LoadChannelsFromFile', channels=3, dtype='uint16')
    for changes, message in (
        ({'model.backbone': resnet, 'model.decode_head.in_channels': 512}, 'ResNet: expected a subclass of Backbone'),
        ({'test_dataloader.dataset.pipeline.0': load}, 'takes images of 3 channels of uint16'),
    ):
        files = save_segmentor(tmp_path, 'ConViT', changes)
        with pytest.raises(InputError, match=message):
            explorer_of(*files)
    with pytest.raises(InputError, match='convit_small.py is a classifier: the page is for detectors and segmentors'):
        of_random_weights('convit_small.py', tmp_path)
