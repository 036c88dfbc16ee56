"""tools/export.py --via torch: the files against the model, and what is refused."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS as REGISTRY
from mmengine.registry import TRANSFORMS

from bioattn_mm import Predictor
from bioattn_mm.export.formats import FOR_ONNX
from bioattn_mm.export.pipeline import preprocessing_of
from bioattn_mm.export.program import adaptive_average
from bioattn_mm.ops.portable import portable_formulas
from bioattn_mm.runtime import Model
from bioattn_mm.runtime.preprocessing import prepare
from bioattn_mm.systems.gab.vit_attention import GaussianRelPosAttention
from bioattn_mm.systems.pervit import DistanceEmbedding, PeripheralAttention
from bioattn_mm.systems.transnext import AggregatedAttention, ConvGLU, LengthScaledAttention, LogCPB
from bioattn_mm.systems.transnext.position_bias import _doubled_centres, _offset_range
from bioattn_mm.training.config.classes import set_classes
from bioattn_mm.training.config.mini import make_mini
from bioattn_mm.training.config.pipelines import LOAD_CHANNELS

from ..needs import needs
from ..runtime.comparison import check_logits, few_images, image_of
from .random_weights import random_checkpoint
from .running import ROOT, InProcess

UPERNET, MASK_RCNN = (str(ROOT / f'tests/tools/{name}_small.py') for name in ('upernet', 'mask_rcnn'))
ONNX = needs(*FOR_ONNX)
CALL = ('export.py', '--via', 'torch', '--mini', UPERNET)
CLASSES = ('screw', 'nut', 'washer')
SIZE = (64, 96)


def test_portable_formulas_are_the_operators() -> None:
    def bias(ratio: int) -> LogCPB:
        return LogCPB(2, (7, 7), 'extrapolate', (6, 6), (6 // ratio, 6 // ratio))

    distances, peripheral = DistanceEmbedding(2), PeripheralAttention(16, 2)
    layers = (
        AggregatedAttention(16, 2, bias(2), 2),
        AggregatedAttention(16, 2, bias(2), 3, window_size=5),
        LengthScaledAttention(16, 2, bias(1)),
        ConvGLU(48, 2),
        GaussianRelPosAttention(16, 2, sigma=1.5).eval(),
        lambda x: peripheral(x, distances),
    )
    with torch.no_grad():
        for layer in layers:
            x = torch.randn(2, 5, 8, 48 if isinstance(layer, ConvGLU) else 16)
            expected = layer(x)
            with portable_formulas(), torch.profiler.profile() as run:
                torch.testing.assert_close(layer(x), expected, atol=2e-5, rtol=1e-4)
            assert not [event.name for event in run.events() if event.name.startswith('bioattn_mm::')]


@pytest.mark.parametrize('target', [1, (3, 5), (4, None), 9])
def test_adaptive_average(target: object) -> None:
    x = torch.randn(2, 3, 8, 10)
    torch.testing.assert_close(adaptive_average(x, target), F.adaptive_avg_pool2d(x, target))


def test_offsets_of_the_position_bias() -> None:
    """All offsets between tokens and cells, and no more where all cells have one size."""
    for length in range(1, 20):
        for pooled in range(1, 24):
            # The cells of adaptive average pooling.
            centres = [n * length // pooled - (-(n + 1) * length // pooled) - 1 for n in range(pooled)]
            assert _doubled_centres(length, pooled).tolist() == centres
            start, step, number = _offset_range(length, pooled)
            offsets = {2 * token - centre for token in range(length) for centre in centres}
            found = [start + step * index for index in range(number)]
            assert offsets <= set(found) and (found[0], found[-1]) == (min(offsets), max(offsets))
            assert length % pooled or set(found) == offsets


@pytest.fixture(scope='module')
def checkpoint(workplace: Path) -> Path:
    """Weights of a segmentor of own classes, which its config does not know."""
    path = workplace / 'torch_own_classes.pth'
    random_checkpoint(path, UPERNET, CLASSES)
    return path


@pytest.mark.slow
@ONNX
def test_onnx_of_one_size(workplace: Path, checkpoint: Path, tool: InProcess) -> None:
    import onnx
    import onnxruntime

    out = workplace / 'exported_by_torch'
    size = 'x'.join(map(str, SIZE))
    call = (*CALL, checkpoint, '--to', 'onnx', '--size', size, '--out', out, '--int8', few_images(workplace))
    printed = tool(workplace, *call)
    names = ('end2end.onnx', 'end2end_int8.onnx', 'pipeline.json')
    assert all(f'{name}  ' in printed for name in names) and {path.name for path in out.iterdir()} == set(names)
    pipeline = json.loads((out / 'pipeline.json').read_text())
    assert pipeline['classes'] == list(CLASSES) and len(pipeline['palette']) == 3
    assert [step['type'] for step in pipeline['preprocessing']] == ['resize', 'normalize']
    assert pipeline['postprocessing']['mode'] == 'slide'
    assert pipeline['inputs'][0]['shape'] == [1, 3, *SIZE]

    file = out / 'end2end.onnx'
    assert {node.domain for node in onnx.load(file).graph.node} <= {'', 'ai.onnx'}
    session = onnxruntime.InferenceSession(file, providers=['CPUExecutionProvider'])
    image = torch.randn(1, 3, *SIZE)
    (output,) = session.run(['logits'], {'input': image.numpy()})
    config = make_mini(Config.fromfile(UPERNET))
    set_classes(config, CLASSES)
    model = REGISTRY.build(config.model).eval()
    model.load_state_dict(torch.load(checkpoint)['state_dict'])
    with torch.no_grad():
        expected = model.decode_head(model.extract_feat(image))
    assert expected.shape[1] == 3 and float(expected.std()) > 1e-3
    torch.testing.assert_close(torch.from_numpy(output), expected, atol=1e-4, rtol=1e-3)
    # The runtime slides windows of the file's size, at distances in proportion to the config's 85 of 128 pixels.
    windows = {'model.test_cfg.crop_size': SIZE, 'model.test_cfg.stride': (42, 63)}
    check_runtime(out, checkpoint, [image_of(128, 171), image_of(300, 200)], cfg_options=windows)
    (smaller,) = Model(out / 'end2end_int8.onnx').run(image.numpy()).values()
    assert 0 < float((torch.from_numpy(smaller) - expected).abs().max()) < 0.3 * float(expected.abs().max())


def check_runtime(out: Path, checkpoint: Path, images: list[np.ndarray], **options: object) -> None:
    """bioattn_mm.runtime predicts, by pipeline.json alone, what PyTorch predicts by the config."""
    results = Model(out / 'end2end.onnx')(images, return_logits=True)
    samples = Predictor(UPERNET, checkpoint, mini=True, device='cpu', **options)(images, return_logits=True)
    for sample, result in zip(samples, results, strict=True):
        check_logits(sample, result)


@ONNX
@pytest.mark.every_config
def test_onnx_of_any_size(workplace: Path, tool: InProcess) -> None:
    out, checkpoint = workplace / 'exported_of_any_size', workplace / 'torch_any_size.pth'
    random_checkpoint(checkpoint, UPERNET)
    call = (*CALL, checkpoint, '--to', 'onnx', '--out', out, '--int8', few_images(workplace))
    printed = tool(workplace, *call, '--verify', '--verify-images', 2)
    assert '2 of 20 miniature images' in printed
    assert float(re.search('largest difference of the outputs: (.*)', printed)[1]) < 1e-4
    check_runtime(out, checkpoint, [image_of(128, 171), image_of(300, 200)])  # no window of these is padded


@pytest.mark.parametrize('config', ['convit/convit-tiny_8xb128_in1k', 'transnext/upernet_tiny_ade20k'])
def test_pipeline_is_that_of_the_config(config: str) -> None:
    """Resizing as the test pipeline does, by Pillow for ImageNet and OpenCV for ADE20K."""
    config = Config.fromfile(ROOT / f'configs/{config}.py')
    steps = preprocessing_of(config)[:-1]
    image = image_of(300, 401)
    expected = dict(img=image, img_shape=image.shape[:2])
    with TRANSFORMS.switch_scope_and_registry(config.default_scope) as registry:
        for transform in config.test_dataloader.dataset.pipeline:
            if transform['type'] in ('Resize', 'ResizeEdge', 'CenterCrop'):
                expected = registry.build(transform)(expected)
    assert (prepare(image, steps).inputs == expected['img'].transpose(2, 0, 1)).all()
    assert steps[0]['backend'] == ('pillow' if config.default_scope == 'mmpretrain' else 'cv2')
    # Other channels stay in the order in which they are read.
    config.test_dataloader.dataset.pipeline[0] = ConfigDict(type=LOAD_CHANNELS, channels=4, dtype='uint16')
    read, *others, normalize = preprocessing_of(config)
    assert read == dict(type='read', channels=4, dtype='uint16')
    assert others == steps and normalize['channels'] == 'as read'


REFUSED = {
    '': '--via torch takes --to FORMAT, --size and --backbone, and no --deploy-cfg',
    '--to pt2 --int8 data': '--int8 writes an ONNX file: take --to onnx',
    '--to onnx --int8 data --backbone': '--int8 is for whole models: calibrate without --backbone',
    '--to pt2 --verify': '--verify takes miniature images with the 150 classes of ',
    '--to pt2 --verify --backbone': '--via torch --verify is for segmentors; every file is compared',
    '--to pt2 --size 64': '.*expected HEIGHTxWIDTH of at least 32 pixels, such as',
    '--to pt2 --out data': 'data is there already and not empty: name another folder',
}


@pytest.mark.parametrize(('options', 'message'), REFUSED.items())
def test_refused(options: str, message: str, workplace: Path, checkpoint: Path, tool: InProcess) -> None:
    line = tool.refused(workplace, *CALL, checkpoint, '--out', 'new', *options.split())
    assert re.match(f'(export.py: )?error: {message}', line)


def test_detectors_are_refused(workplace: Path, tool: InProcess) -> None:
    random_checkpoint(workplace / 'of_detector.pth', MASK_RCNN)
    options = ('--via', 'torch', '--to', 'pt2', '--size', '64x64', '--mini', '--out', 'new')
    line = tool.refused(workplace, 'export.py', MASK_RCNN, 'of_detector.pth', *options)
    assert line.startswith('error: MaskRCNN: --via torch exports classifiers, segmentors and backbones')


def test_program_for_any_size() -> None:
    """A layer with the compiled operators, which stay in the program, at sizes that it was not traced with."""
    layer = AggregatedAttention(16, 2, LogCPB(2, (7, 7)), 2).eval().requires_grad_(False)
    Dim = torch.export.Dim
    lengths = {0: Dim('batch'), 1: 2 * Dim('rows', min=2), 2: Dim('columns', min=8)}
    with torch.no_grad(), torch.fx.experimental._config.patch(backed_size_oblivious=True):
        program = torch.export.export(
            layer, (torch.randn(2, 8, 11, 16),), dynamic_shapes=(lengths,), strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,
        )  # fmt: skip
        for shape in ((2, 12, 9, 16), (3, 10, 14, 16)):
            x = torch.randn(shape)
            torch.testing.assert_close(program.module()(x), layer(x))
