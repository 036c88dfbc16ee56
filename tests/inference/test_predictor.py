"""Predictor: the predictions of tools/test.py, on images of every kind, with the classes of the checkpoint."""

import itertools
import pickle
import re
import shutil
from pathlib import Path

import cv2
import mmcv
import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.structures import BaseDataElement
from mmseg.structures import SegDataSample
from PIL import Image, ImageOps
from pycocotools import mask as coco_mask

from bioattn_mm import Predictor
from bioattn_mm.errors import InputError
from bioattn_mm.inference.label_maps import labels_alone
from bioattn_mm.runtime import drawing
from bioattn_mm.training.config.classes import default_palette

from ..tools.random_weights import random_checkpoint
from ..tools.running import ROOT, InProcess

CONFIGS = {
    kind: str(ROOT / f'tests/tools/{name}_small.py')
    for kind, name in dict(segmentation='upernet', detection='mask_rcnn').items()
}
IMAGES = dict(segmentation='ADEChallengeData2016/images/validation', detection='coco/val2017')
NUM_IMAGES = 3
FEW = ('--mini', '--work-dir', 'few_tested', '--cfg-options', f'test_dataloader.dataset.indices={NUM_IMAGES}')


@pytest.fixture(scope='module')
def checkpoints(workplace: Path) -> dict[str, str]:
    """Files of random weights by task, in the workplace."""
    for kind, config in CONFIGS.items():
        random_checkpoint(workplace / f'{kind}.pth', config)
    return {kind: str(workplace / f'{kind}.pth') for kind in CONFIGS}


@pytest.fixture(scope='module')
def segmentor(checkpoints: dict[str, str]) -> Predictor:
    return Predictor(CONFIGS['segmentation'], checkpoints['segmentation'], mini=True, device='cpu')


@pytest.fixture(scope='module')
def detector(checkpoints: dict[str, str]) -> Predictor:
    return Predictor(CONFIGS['detection'], checkpoints['detection'], mini=True, device='cpu')


@pytest.fixture(params=['segmentor', 'detector'])
def predictor(request: pytest.FixtureRequest) -> Predictor:
    """Either of them."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def image() -> np.ndarray:
    """Noise over a bright upper half, 40 x 60 pixels."""
    values = np.random.default_rng(0).integers(0, 128, (40, 60, 3), dtype=np.uint8)
    values[:20] += 127
    return values


def mini_images(workplace: Path, task: str, number: int = NUM_IMAGES) -> list[Path]:
    return sorted((workplace / 'data/mini' / IMAGES[task]).glob('*.jpg'))[:number]


def same(a: BaseDataElement, b: BaseDataElement) -> bool:
    """Whether two data samples predict the same, to the last digit."""
    if 'pred_sem_seg' in a:
        return torch.equal(a.seg_logits.data, b.seg_logits.data)
    return all(torch.equal(a.pred_instances[name], b.pred_instances[name]) for name in ('bboxes', 'scores', 'labels'))


def test_segmentation_is_that_of_the_test_tool(workplace: Path, segmentor: Predictor, tool: InProcess) -> None:
    tool(workplace, 'test.py', CONFIGS['segmentation'], 'segmentation.pth', '--out', 'seg_labels', *FEW)
    images = mini_images(workplace, 'segmentation')
    for path, sample in zip(images, segmentor(images)):
        assert isinstance(sample, SegDataSample) and sample.img_path == str(path)
        labels = sample.pred_sem_seg.data[0].numpy()
        assert len(np.unique(labels)) > 1
        # The tool writes ADE20K's numbers, in which 0 is no class.
        tested = mmcv.imread(str(workplace / f'seg_labels/{path.stem}.png'), 'unchanged')
        assert (tested == labels + 1).all()


def test_detection_is_that_of_the_test_tool(workplace: Path, detector: Predictor, tool: InProcess) -> None:
    tool(workplace, 'test.py', CONFIGS['detection'], 'detection.pth', '--out', 'det.pkl', *FEW)
    tested = {Path(result['img_path']).name: result for result in pickle.loads((workplace / 'det.pkl').read_bytes())}
    assert len(tested) == NUM_IMAGES
    images = mini_images(workplace, 'detection')
    for path, sample in zip(images, detector(images)):
        assert isinstance(sample, DetDataSample)
        expected, instances = tested[path.name]['pred_instances'], sample.pred_instances
        assert len(instances) > 5
        for name in ('bboxes', 'scores', 'labels'):
            assert torch.equal(instances[name], torch.as_tensor(expected[name]))
        masks = np.stack([coco_mask.decode(mask) for mask in expected['masks']])
        assert (instances.masks.numpy() == masks).all()


def test_images_of_every_kind(tmp_path: Path, image: np.ndarray, segmentor: Predictor) -> None:
    rgb = Image.fromarray(image[..., ::-1])
    exif = Image.Exif()
    exif[0x0112] = 6  # a camera held upright
    for suffix in ('jpg', 'png', 'tif', 'webp'):
        options = dict(lossless=True) if suffix == 'webp' else dict(quality=98)
        rgb.save(tmp_path / f'turned.{suffix}', exif=exif, **options)
    rgb.convert('L').save(tmp_path / 'grey.png')
    rgb.convert('RGBA').save(tmp_path / 'alpha.png')
    rgb.convert('CMYK').save(tmp_path / 'cmyk.jpg', quality=98)
    rgb.convert('P').save(tmp_path / 'palette.gif')
    rgb.resize((1, 1)).save(tmp_path / 'one.png')
    cv2.imwrite(str(tmp_path / '16bit.png'), image.astype(np.uint16) * 257)
    cv2.imwrite(str(tmp_path / '16bit.tif'), image[..., 0].astype(np.uint16) * 257)
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 11
    for prediction in segmentor.iterate(paths):
        assert prediction.error is None
        path, read = prediction.source, prediction.image
        with Image.open(path) as file:
            seen = ImageOps.exif_transpose(file)
            assert read.shape == (seen.height, seen.width, 3) and read.dtype == np.uint8
            if not path.stem.startswith('16bit'):  # which Pillow does not make 8-bit
                assert np.abs(read[..., ::-1].astype(int) - np.asarray(seen.convert('RGB'))).mean() < 8
        assert prediction.sample.pred_sem_seg.data.shape == (1, *read.shape[:2])
        assert segmentor.draw(path, prediction.sample).shape == read.shape
    assert same(*segmentor([tmp_path / '16bit.png', image], return_logits=True))


def test_any_sizes_and_bad_images(workplace: Path, tmp_path: Path, image: np.ndarray, predictor: Predictor) -> None:
    """A bad image does not end the run."""
    (tmp_path / 'text.png').write_text('no image')
    (tmp_path / 'empty.jpg').touch()
    bad = [
        (tmp_path / 'text.png', 'cannot decode the image .*text.png: damaged, too large, or not'),
        (tmp_path / 'empty.jpg', 'cannot decode the image .*empty.jpg'),
        (tmp_path / 'none.jpg', 'image not found: .*none.jpg'),
        (np.zeros((1, 20000, 3), np.uint8), 'an image of 20000 x 1 pixels cannot be resized'),
        (np.zeros((10, 600, 3), np.uint8), 'an image of 600 x 10 pixels: .*at least 32 pixels'),
        (np.zeros((40, 60), np.uint8), r'an image must be an array of uint8 and .*, got uint8 \(40, 60\)'),
    ]
    good = [image, image[::-1].copy(), image[:30].copy(), mini_images(workplace, predictor.task)[0]]
    given = [image, *(source for source, _ in bad), *good[1:]]
    predictions = list(predictor.iterate(given, batch_size=3, return_logits=True))
    assert all(prediction.source is source for prediction, source in zip(predictions, given, strict=True))
    for prediction, (_, message) in zip(predictions[1:], bad):
        if predictor.task == 'detection' and 'x 10 pixels' in message:
            assert prediction.error is None  # it pads
        else:
            assert prediction.sample is None
            assert re.search(message, str(prediction.error)) and '\n' not in str(prediction.error)
    for source, prediction in zip(good, (predictions[0], *predictions[-3:])):
        (alone,), sample = predictor(source, return_logits=True), prediction.sample
        assert prediction.error is None and sample.ori_shape == alone.ori_shape == prediction.image.shape[:2]
        # Sums over a batch may round differently.
        if predictor.task == 'segmentation':
            assert torch.allclose(alone.seg_logits.data, sample.seg_logits.data, atol=1e-4)
        else:
            assert torch.allclose(alone.pred_instances.scores, sample.pred_instances.scores, atol=1e-4)
    with pytest.raises(InputError, match='cannot decode the image .*text.png'):
        predictor([image, tmp_path / 'text.png'])


def test_one_of_a_batch_that_does_not_fit(image: np.ndarray, segmentor: Predictor, monkeypatch) -> None:
    """Where the memory does not suffice for a batch, its images are taken one by one."""
    run = segmentor._run
    sizes = []

    def run_small(images: list[np.ndarray], return_logits: bool) -> list[BaseDataElement]:
        sizes.append(len(images))
        if len(images) > 1 or images[0].max() == 7:
            raise torch.OutOfMemoryError('CUDA out of memory')
        return run(images, return_logits)

    monkeypatch.setattr(segmentor, '_run', run_small)
    predictions = list(segmentor.iterate([image, np.full_like(image, 7), image], batch_size=3))
    assert sizes == [3, 1, 1, 1]
    assert [prediction.error is None for prediction in predictions] == [True, False, True]
    assert 'needs more memory than there is' in str(predictions[1].error)

    monkeypatch.setattr(segmentor, '_run', lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        segmentor(image)


def test_drawing(image: np.ndarray, segmentor: Predictor, detector: Predictor, monkeypatch) -> None:
    image = image.repeat(8, axis=0).repeat(8, axis=1)  # names are as large in small images
    before = image.copy()
    (labelled,) = segmentor(image)
    for opacity in (0.0, 1.0):
        drawn = segmentor.draw(image, labelled, opacity=opacity)
        # The colour of the class of a pixel that has no text on it, in the order BGR.
        colors = np.array(segmentor.palette)[labelled.pred_sem_seg.data[0].numpy()][..., ::-1]
        assert ((drawn == (colors if opacity else image)).all(-1)).mean() > 0.8
    (found,) = detector(image)
    assert (detector.draw(image, found, score_thr=1.0) == image).all()
    assert (detector.draw(image, found, score_thr=0.0) != image).any()
    # A pipeline may load images as float32 (`to_float32=True`): what is drawn on them has 8 bits all the same.
    loaded = image.astype(np.float32)
    assert np.array_equal(segmentor.draw(loaded, labelled), segmentor.draw(image, labelled))
    assert np.array_equal(detector.draw(loaded, found, score_thr=1.0), image)
    assert (image == before).all()
    # A large image is drawn smaller.
    monkeypatch.setattr(drawing, 'MAX_PIXELS', 160 * 240)
    assert segmentor.draw(image, labelled).shape == detector.draw(image, found).shape == (160, 240, 3)


def test_classes_of_the_checkpoint(workplace: Path, tmp_path: Path, image: np.ndarray) -> None:
    classes = ('ball', 'kite', 'tree')
    for task, config in CONFIGS.items():
        random_checkpoint(tmp_path / 'own.pth', config, classes)
        predictor = Predictor(config, tmp_path / 'own.pth', mini=True, device='cpu')
        assert predictor.classes == classes and predictor.palette == default_palette(3) and predictor.task == task
        (sample,) = predictor(image, return_logits=True)
        labels = sample.pred_sem_seg.data if task == 'segmentation' else sample.pred_instances.labels
        assert labels.numel() > 0 and labels.max() < 3
        assert task == 'detection' or sample.seg_logits.data.shape == (3, 40, 60)
        predictor.draw(image, sample)

    # A file of mmseg 0 that names its classes in capitals, and one that names none.
    checkpoint = torch.load(workplace / 'segmentation.pth')
    names = [f'class {index}' for index in range(150)]
    torch.save(dict(state_dict=checkpoint['state_dict'], meta=dict(CLASSES=names)), tmp_path / 'old.pth')
    predictor = Predictor(CONFIGS['segmentation'], tmp_path / 'old.pth', device='cpu')
    assert predictor.classes == tuple(names) and predictor.palette == default_palette(150)
    torch.save(checkpoint['state_dict'], tmp_path / 'bare.pth')
    predictor = Predictor(CONFIGS['segmentation'], tmp_path / 'bare.pth', device='cpu')
    assert predictor.classes[:2] == ('wall', 'building') and predictor.palette[0] == (120, 120, 120)
    # Not a miniature: with SyncBN, on the CPU.
    assert predictor(image, return_logits=True)[0].seg_logits.data.shape == (150, 40, 60)


@pytest.mark.usefixtures('bfloat16_anywhere')
def test_options_change_the_prediction(predictor: Predictor, checkpoints: dict[str, str], image: np.ndarray) -> None:
    samples, task = predictor(image, return_logits=True), predictor.task
    options = [dict(tta=True), dict(amp='bfloat16')]
    if task == 'segmentation':
        options += dict(mode='whole'), dict(mode='whole', bias_mode='linear')
    for option in options:
        other = Predictor(CONFIGS[task], checkpoints[task], mini=True, device='cpu', **option)
        (sample,) = other(image, return_logits=True)
        samples.append(sample)
        scores = sample.seg_logits.data if task == 'segmentation' else sample.pred_instances.scores
        assert scores.dtype == torch.float32 and scores.numel() > 0
        assert other.draw(image, sample, score_thr=0.0).shape == image.shape
        # mmdet merges no masks.
        assert task == 'segmentation' or ('masks' in sample.pred_instances) == ('amp' in option)
    assert not any(same(a, b) for a, b in itertools.combinations(samples, 2))
    if task == 'segmentation':
        # Multi-scale testing merges its views in the labels; the scores are those of the last one.
        assert (samples[1].pred_sem_seg.data != samples[0].pred_sem_seg.data).any()
        assert predictor.config.model.test_cfg.mode == 'slide'


def test_a_window_that_the_config_does_not_have(checkpoints: dict[str, str], image: np.ndarray) -> None:
    config = Config.fromfile(CONFIGS['segmentation'])
    config.model.test_cfg = dict(mode='whole')
    predictor = Predictor(config, checkpoints['segmentation'], mini=True, device='cpu', mode='slide')
    assert predictor.config.model.test_cfg == dict(mode='slide', crop_size=(128, 128), stride=(85, 85))
    assert config.model.test_cfg == dict(mode='whole')
    assert len(predictor(image)) == 1


def test_the_checkpoint_of_the_miniature_run(tmp_path: Path, checkpoints: dict[str, str], monkeypatch) -> None:
    config, folder = tmp_path / 'configs/system/upernet.py', tmp_path / 'work_dirs/system/upernet_mini'
    config.parent.mkdir(parents=True)
    config.write_text(f'_base_ = {CONFIGS["segmentation"]!r}')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match='no checkpoint in work_dirs/system/upernet_mini: make one with make demo'):
        Predictor(config, mini=True)
    folder.mkdir(parents=True)
    shutil.copy(checkpoints['segmentation'], folder / 'iter_200.pth')
    (folder / 'last_checkpoint').write_text('elsewhere/iter_200.pth')
    assert Predictor(config, mini=True, device='cpu').checkpoint == 'work_dirs/system/upernet_mini/iter_200.pth'
    assert not (tmp_path / 'data').exists()  # prediction draws no miniature data


BAD_ARGUMENTS = [
    ('segmentation', None, {}, 'no checkpoint: name the one to predict with'),
    ('segmentation', 'none.pth', {}, 'checkpoint not found: none.pth'),
    ('segmentation', 'detection', {}, 'is not a checkpoint of this model; '),
    ('segmentation', 'a.onnx', {}, 'an exported model is run without a config: predict.py a.onnx'),
    ('detection', 'detection', dict(mode='slide'), 'slide is for segmentors, and .*small.py'),
    ('segmentation', 'segmentation', dict(mode='tiles'), "mode must be 'slide' or 'whole'"),
    ('detection', 'detection', dict(amp='float16'), 'float16 needs a GPU: on the CPU take'),
    ('detection', 'detection', dict(amp='float64'), 'amp must be one of float16, bfloat16'),
    ('pose.py', 'x.pth', {}, 'is a config of mmpose: prediction is for those of mmdet, mmseg and mmpret'),
]


@pytest.mark.parametrize(('task', 'checkpoint', 'options', 'message'), BAD_ARGUMENTS)
def test_wrong_arguments(
    task: str, checkpoint: str | None, options: dict, message: str, checkpoints: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / 'pose.py').write_text("default_scope = 'mmpose'\nmodel = test_dataloader = test_evaluator = dict()\n")
    config = CONFIGS.get(task, tmp_path / task)
    with pytest.raises(InputError, match=message):
        Predictor(config, checkpoints.get(checkpoint, checkpoint), device='cpu', **options)


def test_classes_of_the_config(checkpoints: dict[str, str], tmp_path: Path) -> None:
    checkpoint = torch.load(checkpoints['detection'])
    torch.save(checkpoint['state_dict'], tmp_path / 'bare.pth')
    names = tuple(f'class {index}' for index in range(80))
    (tmp_path / 'classes.txt').write_text('\n'.join(names))
    for classes in (names, str(tmp_path / 'classes.txt')):
        config = Config.fromfile(CONFIGS['detection'])
        config.test_dataloader.dataset.metainfo = dict(classes=classes, palette='random')
        predictor = Predictor(config, tmp_path / 'bare.pth', device='cpu')
        assert predictor.classes == names and predictor.palette == default_palette(80)
    config.test_dataloader.dataset = dict(type='ConcatDataset', datasets=[config.test_dataloader.dataset])
    with pytest.raises(InputError, match='the test dataset of .*mask_rcnn_small.py has no pipeline of its own'):
        Predictor(config, tmp_path / 'bare.pth')
    config.test_dataloader.dataset = dict(type='CustomDataset', pipeline=[])
    with pytest.raises(InputError, match='neither .*bare.pth nor .*mask_rcnn_small.py names classes: add them'):
        Predictor(config, tmp_path / 'bare.pth', device='cpu')


def test_a_prediction_that_is_nan(segmentor: Predictor, image: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    bias = segmentor.model.decode_head.conv_seg.bias
    monkeypatch.setattr(bias, 'data', bias.data.index_fill(0, torch.tensor(3), float('nan')))
    with pytest.raises(InputError, match=r'image of 60 x 40 pixels: the model predicts NaN \(seg_logits\)'):
        segmentor(image)


@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize('padding', [None, (3, 5, 2, 4)])
def test_labels_without_logits_are_mmsegs(
    align_corners: bool, padding: tuple[int, ...] | None, segmentor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = segmentor.model
    monkeypatch.setattr(model, 'align_corners', align_corners)
    meta = dict(ori_shape=(37, 61)) | (dict(img_padding_size=padding) if padding else {})
    logits = torch.randn(2, 5, 24, 32, generator=torch.Generator().manual_seed(0))
    expected = model.postprocess_result(logits, [SegDataSample(metainfo=meta) for _ in logits])
    with labels_alone(model):
        found = model.postprocess_result(logits, [SegDataSample(metainfo=meta) for _ in logits])
    for one, other in zip(found, expected):
        assert 'seg_logits' not in one and 'seg_logits' in other
        assert torch.equal(one.pred_sem_seg.data, other.pred_sem_seg.data)
