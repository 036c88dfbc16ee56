"""What the runtime does before and after the network, beside mmcv, mmseg and mmdet, on both backends."""

import functools
import json
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmcv.transforms import TRANSFORMS
from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask
from mmseg.models import EncoderDecoder
from PIL import Image

from ..docs.blocks import read_blocks
from ..needs import ONNXRUNTIME_WEB, module_needs, needs

pytestmark = module_needs('onnx', 'onnxruntime', 'openvino')

from onnx import helper  # noqa: E402

from bioattn_mm.errors import InputError  # noqa: E402
from bioattn_mm.export.pipeline import _step_of  # noqa: E402
from bioattn_mm.runtime import Model, Segmentation  # noqa: E402
from bioattn_mm.runtime.backends import BACKENDS  # noqa: E402
from bioattn_mm.runtime.command import predict_all  # noqa: E402
from bioattn_mm.runtime.paths import find_inputs  # noqa: E402
from bioattn_mm.runtime.postprocessing import detections, resize_maps  # noqa: E402
from bioattn_mm.runtime.preprocessing import prepare  # noqa: E402
from bioattn_mm.runtime.results import Results  # noqa: E402

from ..tools.running import ROOT, InProcess  # noqa: E402
from .comparison import image_of  # noqa: E402
from .small_models import CLASSES, MEAN, SLIDE, STD, WHOLE, change_pipeline, segmentor, weights, write  # noqa: E402


def mmsegs_logits(image: np.ndarray, settings: dict) -> np.ndarray:
    """What mmseg's segmentor makes of the network of `segmentor`, for an image without resize: (classes, H, W)."""
    inputs = (torch.from_numpy(image[..., ::-1].copy()).float() - torch.tensor(MEAN)) / torch.tensor(STD)
    inputs = inputs.permute(2, 0, 1)[None]

    weight, bias = map(torch.from_numpy, weights())

    def encode_decode(crop: torch.Tensor, metas: object) -> torch.Tensor:
        logits = F.conv2d(crop, weight, bias, stride=2, padding=1)
        return F.interpolate(logits, crop.shape[2:], mode='bilinear', align_corners=settings['align_corners'])

    config = SimpleNamespace(**{name: settings.get(name) for name in ('crop_size', 'stride')})
    model = SimpleNamespace(test_cfg=config, out_channels=len(CLASSES), encode_decode=encode_decode)
    if settings['mode'] == 'slide':
        return EncoderDecoder.slide_inference(model, inputs, [dict()])[0].numpy()
    return encode_decode(inputs, None)[0].numpy()


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('settings', [SLIDE, WHOLE, dict(WHOLE, align_corners=True)])
def test_segmentation_is_mmsegs(backend: str, settings: dict, tmp_path: Path) -> None:
    model = Model(segmentor(tmp_path, **settings), backend)
    # Of the height that images are resized to; the last is smaller than a window after that.
    images = [image_of(48, 61), image_of(48, 48, 1), image_of(48, 96, 2), image_of(48, 61, 3), image_of(48, 61, 4)]
    results = model(images, batch_size=3, return_logits=True)
    for image, result in zip(images, results):
        expected = mmsegs_logits(image, settings)
        assert np.abs(result.logits - expected).max() < 1e-4
        assert len(np.unique(result.labels)) == len(CLASSES)
        near = np.diff(np.sort(expected, axis=0)[-2:], axis=0)[0] < 1e-4
        assert ((result.labels == expected.argmax(0)) | near).all()
    assert all((one.labels == other.labels).all() for one, other in zip(results, model(images)))
    # Results have the size of the image.
    image = image_of(150, 211)
    (result,) = model(image, return_logits=True)
    small = torch.from_numpy(mmsegs_logits(cv2.resize(image, (68, 48)), settings))
    expected = F.interpolate(small[None], (150, 211), mode='bilinear', align_corners=settings['align_corners'])[0]
    assert np.abs(result.logits - expected.numpy()).max() < 1e-4
    assert (model.draw(image, result) != image).any()


def test_images_of_four_channels(tmp_path: Path) -> None:
    path = segmentor(tmp_path, ('batch', 4, 'height', 'width'), **WHOLE)
    change_pipeline(tmp_path, preprocessing=[dict(type='read', channels=4, dtype='uint16')])
    model, image = Model(path), np.random.default_rng(0).integers(0, 65536, (40, 52, 4), dtype=np.uint16)
    np.save(tmp_path / 'image.npy', image)
    one, other = model([image, tmp_path / 'image.npy'])
    assert (one.labels == other.labels).all() and len(np.unique(one.labels)) > 1
    assert model.draw(image, one, opacity=0).std() > 10
    with pytest.raises(InputError, match='the array has 3 channels of uint8, expected 4 channels of uint16'):
        model(image_of(48, 61))


def test_models_of_one_size(tmp_path: Path) -> None:
    anything = Model(segmentor(tmp_path / 'any', **dict(SLIDE, crop_size=[32, 32], stride=[20, 20])))
    path = segmentor(tmp_path / 'one', (2, 3, 32, 32), **dict(SLIDE, crop_size=[32, 32], stride=[20, 20]))
    images = [image_of(48, 61), image_of(48, 48), image_of(48, 48, 1)]
    for one, other in zip(Model(path)(images, batch_size=3), anything(images)):
        assert (one.labels == other.labels).all()
    # Taken whole, images are resized to the size of the model.
    one, other = Model(path, mode='whole'), anything(cv2.resize(images[0], (32, 32)), return_logits=True)
    assert one(images[0])[0].labels.shape == (48, 61)
    # Windows are larger than the image, which is padded.
    path = segmentor(tmp_path / 'large', (1, 3, 64, 64), **dict(SLIDE, crop_size=[64, 64]))
    assert Model(path)(images[0])[0].labels.shape == (48, 61)


def test_one_class_has_a_threshold(tmp_path: Path) -> None:
    model = Model(segmentor(tmp_path, classes=1, channels=1, threshold=0.3, **WHOLE))
    (result,) = model(image_of(48, 61))
    assert 0 < result.logits.min() < 0.1 and 0.9 < result.logits.max() <= 1
    assert (result.labels == (result.logits[0] > 0.3)).all() and set(np.unique(result.labels)) == {0, 1}
    predictor = SimpleNamespace(task='segmentation', classes=('wall',), palette=[(1, 2, 3)])
    Results(tmp_path, predictor)._write('a', {}, Segmentation(np.array([[0, 1]])))
    assert np.asarray(Image.open(tmp_path / 'labels/a.png')).tolist() == [[0, 255]]


@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize('size', [(7, 9), (30, 41), (3, 60), (1, 5)])
def test_resize_is_pytorchs(size: tuple[int, int], align_corners: bool) -> None:
    maps = np.random.default_rng(0).normal(size=(5, 12, 17)).astype(np.float32)
    expected = F.interpolate(torch.from_numpy(maps)[None], size, mode='bilinear', align_corners=align_corners)[0]
    assert np.abs(resize_maps(maps, size, align_corners) - expected.numpy()).max() < 1e-5


TRANSFORMATIONS = [
    dict(type='Resize', scale=(90, 40), keep_ratio=True),
    dict(type='Resize', scale=(90, 40), keep_ratio=False, interpolation='bicubic'),
    dict(type='mmpretrain.ResizeEdge', scale=37, edge='short', backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=(31, 30)),
]


@pytest.mark.parametrize('transform', TRANSFORMATIONS)
@pytest.mark.parametrize('size', [(53, 80), (81, 47)])
def test_steps_are_those_of_the_transforms(transform: dict, size: tuple[int, int]) -> None:
    import mmpretrain.datasets  # noqa: F401  registers its transforms

    image = image_of(*size)
    with TRANSFORMS.switch_scope_and_registry('mmpretrain') as registry:
        expected = registry.build(transform)(dict(img=image.copy(), img_shape=size))['img']
    (found,) = _step_of(transform)
    assert (prepare(image, [found]).inputs == expected.transpose(2, 0, 1)).all()


def test_an_image_that_needs_too_much_memory_does_not_end_the_run(tmp_path: Path, monkeypatch) -> None:
    """For its preparation, or for its label map."""
    model, image = Model(segmentor(tmp_path, **WHOLE)), image_of(48, 61)
    prepared = prepare(image, model._steps)
    mocked = Mock(side_effect=[prepared, MemoryError(), cv2.error('resize'), prepared])
    with monkeypatch.context() as patched:
        patched.setattr('bioattn_mm.runtime.model.prepare', mocked)
        first, *bad, last = model.iterate([image] * 4, batch_size=2)
    assert np.array_equal(first.result.labels, last.result.labels)
    no_memory = Mock(side_effect=cv2.error('Insufficient memory'))
    monkeypatch.setattr('bioattn_mm.runtime.postprocessing.labels_of', no_memory)
    bad += model.iterate([image] * 2, batch_size=2)
    reasons = ('needs more memory than there is', *['cannot be resized'] * 3)
    for prediction, reason in zip(bad, reasons, strict=True):
        assert str(prediction.error).startswith(f'an image of 61 x 48 pixels {reason}')
    monkeypatch.setattr(model, '_compute', compute := Mock())
    assert len(list(model.iterate([image] * 2))) == compute.call_count == 2  # one by one, unless asked for batches


def test_nan_is_no_class(tmp_path: Path) -> None:
    """The image beside it in the batch is predicted."""
    # Logarithms, which are NaN of negative numbers.
    nodes = [helper.make_node('Log', ['input'], ['logits'])]
    model = Model(write(tmp_path, 'segmentation', nodes, {}, ('batch', 3, 'height', 'width'), ['logits'], WHOLE))
    model._steps = [dict(type='normalize', mean=[9.0] * 3, std=[1.0] * 3, channels='BGR')]
    bright, dark = np.full((32, 48, 3), 99, np.uint8), np.full((32, 48, 3), 3, np.uint8)
    good, bad = model.iterate([bright, dark], batch_size=2)
    assert good.error is None and 'predicts NaN (logits): its weights are' in str(bad.error)


def test_frames_have_the_order_of_files(tmp_path: Path) -> None:
    # Each channel is a class, red the first.
    nodes, shape = [helper.make_node('Identity', ['input'], ['logits'])], ('batch', 3, 'height', 'width')
    path = write(tmp_path / 'exported', 'segmentation', nodes, {}, shape, ['logits'], WHOLE)
    change_pipeline(path.parent, preprocessing=[dict(type='read', channels=3, dtype='uint8')])
    red = np.full((48, 64, 3), (0, 0, 250), np.uint8)
    cv2.imwrite(str(tmp_path / 'red.png'), red)
    writer = cv2.VideoWriter(str(tmp_path / 'clip.mp4'), cv2.VideoWriter_fourcc(*'mp4v'), 5, (64, 48))
    writer.write(red)
    writer.release()
    inputs = find_inputs([str(tmp_path / 'red.png'), str(tmp_path / 'clip.mp4')])
    predict_all(model := Model(path), *inputs, Results(tmp_path / 'found', model), batch_size=1)
    for name in ('red', 'clip/000000'):
        assert not np.asarray(Image.open(tmp_path / f'found/labels/{name}.png')).any()
    found, frame = cv2.VideoCapture(str(tmp_path / 'found/overlays/clip.mp4')).read()
    overlay = cv2.imread(str(tmp_path / 'found/overlays/red.png'))
    assert found and np.abs(frame.mean((0, 1)) - overlay.mean((0, 1))).max() < 10


@pytest.mark.parametrize('by', ['a step', 'the input'])
def test_padding_is_cut_off(by: str, tmp_path: Path) -> None:
    path, image = segmentor(tmp_path, **WHOLE), image_of(48, 62)
    if by == 'a step':
        steps = [*Model(path)._steps, dict(type='pad', divisor=32, value=0.5)]
        change_pipeline(tmp_path, preprocessing=steps)
        prepared = prepare(image, steps)
        assert prepared.size == (48, 62) and prepared.inputs.shape == (3, 64, 64)
        assert (prepared.inputs[:, 48:] == 0.5).all() and (prepared.inputs[..., 62:] == 0.5).all()
    else:  # whose sides must be multiples
        change_pipeline(tmp_path, inputs=[dict(name='input', minimum=80, multiple=32)])
        assert Model(path).inputs_of(image).shape == (1, 3, 96, 96)
        assert Model(path).inputs_of(image_of(48, 100)).shape == (1, 3, 96, 96)  # resized to 46 x 96
    (result,) = Model(path)(image, return_logits=True)
    expected = mmsegs_logits(image, WHOLE)
    assert result.logits.shape == expected.shape
    # The last rows and columns see the padding.
    assert np.abs(result.logits - expected)[:, :-3, :-3].max() < 1e-4


def test_masks_are_mmdets() -> None:
    random = np.random.default_rng(0)
    masks = random.uniform(size=(6, 28, 28)).astype(np.float32)
    masks = np.stack([cv2.GaussianBlur(mask, (0, 0), 3) for mask in masks])
    corners = random.uniform(-10, 30, size=(6, 2))
    boxes = np.concatenate([corners, corners + random.uniform(14, 50, size=(6, 2))], axis=1).astype(np.float32)
    dets = np.concatenate([boxes, np.linspace(1, 0.1, 6, dtype=np.float32)[:, None]], axis=1)
    outputs = dict(dets=dets, labels=np.arange(6), masks=masks)
    found = detections(outputs, (40, 50), (80, 75), dict(score_thr=0.2))
    assert found.labels.tolist() == [0, 1, 2, 3, 4]
    assert detections(outputs, (40, 50), (80, 75), dict(max_per_img=4)).labels.tolist() == [0, 1, 2, 3]
    expected_boxes = torch.from_numpy(boxes[:5] * np.float32([1.5, 2, 1.5, 2]))
    expected_boxes[:, 0::2].clamp_(0, 75), expected_boxes[:, 1::2].clamp_(0, 80)
    assert np.allclose(found.boxes, expected_boxes)
    expected, _ = _do_paste_mask(torch.from_numpy(masks[:5, None]), expected_boxes, 80, 75, skip_empty=False)
    different = (found.masks != (expected >= 0.5).numpy()) & ((expected - 0.5).abs() > 1e-5).numpy()
    assert not different.any() and found.masks.any(axis=(1, 2)).sum() >= 3


REFUSED = {
    'none.onnx a.png': 'exported model not found: none.onnx',
    'exported/model.onnx a.png --slide': 'no size of a sliding window',
    'exported/model.onnx a.png --format coco': 'for detectors',
    'exported/model.onnx a.png --classes fog': "the model has no class 'fog': it knows 4, wall",
    'exported/model.onnx a.png --out exported': 'exported is there already and not empty: name another folder',
    'other.onnx a.png': 'pipeline.json not found',
    'exported/other.onnx a.png --backend onnxruntime': 'onnxruntime cannot load',
    'exported/other.onnx a.png --backend openvino': 'OpenVINO cannot load',
    '--batch-size 2 exported/model.onnx a.png': 'model.onnx is an exported model: name it before all options',
}


def test_what_the_command_refuses(tmp_path: Path, tool: InProcess) -> None:
    segmentor(tmp_path / 'exported', **WHOLE)
    cv2.imwrite(str(tmp_path / 'a.png'), image_of(60, 90))
    for name in ('other.onnx', 'exported/other.onnx'):
        (tmp_path / name).write_bytes(b'no model')
    for arguments, message in REFUSED.items():
        error = tool.refused(tmp_path, 'predict.py', *arguments.split())
        assert error.startswith('error: ') and message in error
    with pytest.raises(SystemExit):
        tool(tmp_path, 'predict.py', 'exported/model.onnx', '--help')
    assert 'Example:\n  predict.py exported/end2end.onnx' in tool.capsys.readouterr().out


def test_what_a_model_refuses(tmp_path: Path) -> None:
    path, pipeline = segmentor(tmp_path, **WHOLE), tmp_path / 'pipeline.json'
    with pytest.raises(InputError, match="must be 'slide' or 'whole', got 'both'"):
        Model(path, mode='both')
    with pytest.raises(InputError, match='onnxruntime does not compute in bfloat16 on a CPU: take the backend open'):
        Model(path, bfloat16=True)
    document = pipeline.read_text()
    for change, reason in (
        (dict(format='bioattn_mm/7'), 'has the format bioattn_mm/7, expected bioattn_mm/1'),
        (dict(task='panoptic'), 'is a model for panoptic, and the runtime is for'),
        (dict(preprocessing=[dict(type='flip')]), "has a step 'flip', expected one of resize"),
        (dict(preprocessing=[dict(type='resize', by=3)]), 'has a step that cannot be done, .*by'),
        (dict(preprocessing=3), 'json is damaged, it has no preprocessing that is a list'),
        (dict(postprocessing=None), 'json is damaged, it has no postprocessing that is an object'),
    ):
        pipeline.write_text(document)
        change_pipeline(tmp_path, **change)
        with pytest.raises(InputError, match=reason):
            Model(path)(image_of(60, 90))
    pipeline.write_text('{')
    with pytest.raises(InputError, match='pipeline.json is damaged, .*: export the model again'):
        Model(path)


WITHOUT_PYTORCH = """
import runpy, sys
sys.modules.update(dict.fromkeys('torch torchvision mmengine mmcv mmdet mmseg timm'.split()))  # cannot be imported
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')
"""


def test_the_command_without_pytorch(tmp_path: Path) -> None:
    model = segmentor(tmp_path / 'exported', **SLIDE)
    (tmp_path / 'images').mkdir()
    cv2.imwrite(str(tmp_path / 'images/a.png'), image_of(60, 90))
    (tmp_path / 'images/b.png').write_text('no image')
    command = [sys.executable, '-c', WITHOUT_PYTORCH, ROOT / 'tools/predict.py', model, 'images', '--out', 'new']
    command += ['--backend', 'openvino', '--classes', 'sky', 'sea', '--threads', '1', '--batch-size', '2']
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 1 and '1 image, ' in process.stdout
    assert 'could not be used' in process.stderr, process.stderr[-2000:]
    document = json.loads((tmp_path / 'new/predictions.json').read_text())
    assert [category['name'] for category in document['categories']] == list(CLASSES)
    (entry,) = document['images']
    labels = np.asarray(Image.open(tmp_path / 'new' / entry['label_map']))
    (expected,) = Model(model, 'openvino')(tmp_path / 'images/a.png')
    assert (labels == np.where(np.isin(expected.labels, (1, 2)), expected.labels, 255)).all()
    assert cv2.imread(str(tmp_path / 'new/overlays/a.png')).shape == (60, 90, 3)


SIGNAL_AFTER_MODELS = """
import os, signal, sys
from bioattn_mm.runtime import Model
signal.signal(signal.SIGUSR1, lambda *args: print('handled'))
for backend in sys.argv[2:]:
    first, second = (Model(sys.argv[1], backend) for _ in range(2))
    del first
    del second
    os.kill(os.getpid(), signal.SIGUSR1)
"""


def test_signals_are_handled_when_models_are_gone(tmp_path: Path) -> None:
    command = [sys.executable, '-c', SIGNAL_AFTER_MODELS, segmentor(tmp_path, **WHOLE), *BACKENDS]
    process = subprocess.run(command, capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (0, 'handled\n' * len(BACKENDS)), process.stderr[-2000:]


@needs('bfloat16 in OpenVINO')
def test_bfloat16(tmp_path: Path) -> None:
    path, image = segmentor(tmp_path, **WHOLE), image_of(48, 62)
    (expected,), (found,) = (
        Model(path, 'openvino', bfloat16=bfloat16)(image, return_logits=True) for bfloat16 in (False, True)
    )
    difference = np.abs(found.logits - expected.logits).max() / np.abs(expected.logits).max()
    assert 1e-5 < difference < 0.02


def test_the_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = [block for block in read_blocks('docs/export.md') if block.language == 'python']
    monkeypatch.chdir(tmp_path)
    segmentor(tmp_path / 'exported', **SLIDE).rename(tmp_path / 'exported/end2end.onnx')
    cv2.imwrite('street.jpg', image_of(60, 90))
    found = {}
    exec(block.text, found)
    assert found['result'].labels.shape == (60, 90) and len(np.unique(found['result'].labels)) > 1
    assert cv2.imread('drawn.png').shape == (60, 90, 3)


PAGE = """<!doctype html><img src="image.png"><script type="module">
import { load, segment } from './browser.js';
const image = document.querySelector('img');
await image.decode();
const { labels, width, height } = await segment(await load('.', 'model.onnx'), image);
window.result = { labels: Array.from(labels), width, height };
</script>"""


@needs('playwright', 'Chromium', 'onnxruntime-web')
def test_the_browser_finds_the_same_classes(tmp_path: Path, browser: object) -> None:
    """packaging/runtime/browser.js in headless Chromium."""
    segmentor(tmp_path, **WHOLE)
    # 48 x 62 become 64 x 64, without a resize.
    change_pipeline(tmp_path, inputs=[dict(minimum=32, multiple=32)])
    cv2.imwrite(str(tmp_path / 'image.png'), image_of(48, 62))
    (tmp_path / 'browser.js').write_text((ROOT / 'packaging/runtime/browser.js').read_text())
    (tmp_path / 'node_modules').symlink_to(ONNXRUNTIME_WEB)
    (tmp_path / 'index.html').write_text(PAGE)
    handler, errors = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path)), []
    with ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page()
        page.on('pageerror', errors.append)
        page.goto(f'http://127.0.0.1:{server.server_port}/')
        page.wait_for_function('window.result', timeout=30_000)
        result = page.evaluate('window.result')
        server.shutdown()
    assert not errors
    found = np.reshape(result['labels'], (result['height'], result['width']))
    model = Model(tmp_path / 'model.onnx')
    (logits,) = model.run(model.inputs_of(cv2.imread(str(tmp_path / 'image.png')))).values()
    assert logits.shape[2:] == (32, 32)
    logits = logits[:, :, :24, :31]
    near = np.diff(np.sort(logits[0], axis=0)[-2:], axis=0)[0] < 1e-4
    assert found.shape == logits.shape[2:] and len(np.unique(found)) == 4
    assert ((found == logits[0].argmax(0)) | near).all()
