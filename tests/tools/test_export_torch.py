"""tools/export.py --via torch: the files against the model, what is refused, and what TensorRT would read."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.registry import MODELS as REGISTRY

from bioattn_mm.errors import InputError
from bioattn_mm.export.program import adaptive_average
from bioattn_mm.layers import (
    AggregatedAttention,
    ConvGLU,
    DistanceEmbedding,
    LengthScaledAttention,
    LogCPB,
    PeripheralAttention,
)
from bioattn_mm.layers.gaussian_relative_attention import GaussianRelPosAttention
from bioattn_mm.layers.log_cpb import _doubled_centres, _offset_range
from bioattn_mm.ops.portable import portable_formulas
from bioattn_mm.registry import MODELS

from .random_weights import random_checkpoint
from .running import ROOT, InProcess

UPERNET, MASK_RCNN = (str(ROOT / f'tests/tools/{name}_small.py') for name in ('upernet', 'mask_rcnn'))
CLASSES = ('screw', 'nut', 'washer')
SIZE = (64, 96)


def packages() -> None:
    for package in ('onnx', 'onnxscript', 'onnxslim', 'onnxruntime'):
        pytest.importorskip(package, reason=f'{package} is not installed: make setup EXTRA=deploy')


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
            with portable_formulas():
                torch.testing.assert_close(layer(x), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize('target', [1, (3, 5), (4, None), 9])
def test_adaptive_average(target: object) -> None:
    x = torch.randn(2, 3, 8, 10)
    torch.testing.assert_close(adaptive_average(x, target), F.adaptive_avg_pool2d(x, target))


def test_offsets_of_the_position_bias() -> None:
    """All offsets between tokens and cells, and no more where all cells have one size."""
    for length in range(1, 20):
        for pooled in range(1, 24):
            cells = [
                (cell * length // pooled, -(-(cell + 1) * length // pooled)) for cell in range(pooled)
            ]  # as adaptive average pooling has them
            centres = [start + end - 1 for start, end in cells]
            assert _doubled_centres(length, pooled).tolist() == centres
            start, step, number = _offset_range(length, pooled)
            offsets = {2 * token - centre for token in range(length) for centre in centres}
            found = [start + step * index for index in range(number)]
            assert offsets <= set(found) and (found[0], found[-1]) == (min(offsets), max(offsets))
            assert length % pooled or set(found) == offsets


@pytest.fixture(scope='module')
def checkpoint(workplace: Path) -> Path:
    """Weights of a segmentor of own classes, which its config does not know."""
    path = workplace / 'own_classes.pth'
    random_checkpoint(path, UPERNET, CLASSES)
    return path


def test_onnx_of_one_size(workplace: Path, checkpoint: Path, tool: InProcess) -> None:
    packages()
    import onnx
    import onnxruntime

    from bioattn_mm.export.tensorrt import refused_by_tensorrt

    out = workplace / 'exported_by_torch'
    size = 'x'.join(map(str, SIZE))
    printed = tool(
        workplace, 'export.py', UPERNET, checkpoint, '--via', 'torch', '--to', 'onnx', '--size', size, '--mini',
        '--out', out,
    )  # fmt: skip
    assert 'end2end.onnx' in printed and 'pipeline.json' in printed
    pipeline = json.loads((out / 'pipeline.json').read_text())
    assert pipeline['classes'] == list(CLASSES) and len(pipeline['palette']) == 3
    assert [step['type'] for step in pipeline['preprocessing']] == ['resize', 'normalize']
    assert pipeline['postprocessing']['mode'] == 'slide'
    assert pipeline['inputs'][0]['shape'] == [1, 3, *SIZE]

    file = out / 'end2end.onnx'
    assert {node.domain for node in onnx.load(file).graph.node} <= {'', 'ai.onnx'}
    assert refused_by_tensorrt(file) == []
    session = onnxruntime.InferenceSession(file, providers=['CPUExecutionProvider'])
    image = torch.randn(1, 3, *SIZE)
    (output,) = session.run(['logits'], {'input': image.numpy()})
    from bioattn_mm.cli.classes import set_classes
    from bioattn_mm.cli.mini import make_mini

    config = make_mini(Config.fromfile(UPERNET))
    set_classes(config, CLASSES)
    model = REGISTRY.build(config.model).eval()
    model.load_state_dict(torch.load(checkpoint)['state_dict'])
    with torch.no_grad():
        expected = model.decode_head(model.extract_feat(image))
    assert expected.shape[1] == 3 and float(expected.std()) > 1e-3
    torch.testing.assert_close(torch.from_numpy(output), expected, atol=1e-4, rtol=1e-3)
    line = tool.refused(
        workplace, 'export.py', UPERNET, checkpoint, '--via', 'torch', '--to', 'pt2', '--mini', '--out', out
    )
    assert line.endswith('name another folder for --out')


def test_refused(workplace: Path, checkpoint: Path, tool: InProcess) -> None:
    def error(*args: object) -> str:
        return tool.refused(workplace, 'export.py', *args, '--mini', '--out', 'new')

    line = error(UPERNET, checkpoint, '--via', 'torch')
    assert line == 'error: --via torch takes --to FORMAT, --size and --backbone, and no --deploy-cfg or --verify'
    line = error(UPERNET, checkpoint, '--to', 'onnx')
    assert line == 'error: --via mmdeploy takes --deploy-cfg FILE, and no --to, --size or --backbone'
    line = error(UPERNET, checkpoint, '--via', 'torch', '--to', 'pt2', '--size', '64')
    assert 'expected HEIGHTxWIDTH of at least 32 pixels, such as 512x512' in line
    random_checkpoint(workplace / 'of_detector.pth', MASK_RCNN)
    line = error(MASK_RCNN, 'of_detector.pth', '--via', 'torch', '--to', 'onnx', '--size', '64x64')
    assert line.startswith('error: MaskRCNN: --via torch exports classifiers, segmentors and backbones')


def test_program_for_any_size() -> None:
    """A layer with the compiled operators, which stay in the program, at sizes that it was not traced with."""
    layer = AggregatedAttention(16, 2, LogCPB(2, (7, 7)), 2).eval().requires_grad_(False)
    lengths = {
        0: torch.export.Dim('batch'),
        1: 2 * torch.export.Dim('rows', min=2),
        2: torch.export.Dim('columns', min=8),
    }
    with torch.no_grad(), torch.fx.experimental._config.patch(backed_size_oblivious=True):
        program = torch.export.export(
            layer, (torch.randn(2, 8, 11, 16),), dynamic_shapes=(lengths,), strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,
        )  # fmt: skip
        for shape in ((2, 12, 9, 16), (3, 10, 14, 16)):
            x = torch.randn(shape)
            torch.testing.assert_close(program.module()(x), layer(x))


SMALL = dict(embed_dims=(24, 48, 48, 48), num_heads=(1, 2, 2, 2), depths=(1, 1, 1, 1))
BACKBONES = dict(
    TransNeXt=dict(type='TransNeXt', arch=SMALL),
    interpolated=dict(type='TransNeXt', arch=SMALL, bias_mode='interpolate', img_size=224),
    linear=dict(type='TransNeXt', arch=SMALL, pool_size=4),
    ConViT=dict(
        type='ConViT', arch=dict(embed_dims=48, num_layers=4, num_heads=4), local_up_to_layer=2, out_indices=(1, 3)
    ),
    PerViT=dict(type='PerViT'),
    GABViT=dict(type='GABViT'),
    GABSwin=dict(type='GABSwin'),
    **{f'VARS-{kind}'.upper(): dict(type='VARS', attention=f'vars_{kind}') for kind in ('s', 'd', 'sd')},
)
# What docs/export.md says: formats and sizes that a backbone is refused for.
REFUSED = {
    *(('GABSwin', kind, 'any') for kind in ('onnx', 'pt2')),
    *(('VARS-S', 'onnx', size) for size in ('one', 'any')),
}


@pytest.mark.every_config
@pytest.mark.parametrize('size', ['one', 'any'])
@pytest.mark.parametrize('kind', ['onnx', 'pt2'])
@pytest.mark.parametrize('name', BACKBONES)
def test_every_backbone(name: str, kind: str, size: str, tmp_path: Path) -> None:
    """A row of the table of docs/export.md; the export itself compares the file with the model."""
    packages()
    from bioattn_mm.export.formats import export

    config = Config.fromfile(UPERNET)
    model = torch.nn.Module()
    model.backbone = MODELS.build(BACKBONES[name]).eval()
    arguments = (model, config, kind, tmp_path, (96, 128) if size == 'one' else None)
    if (name, kind, size) in REFUSED:
        with pytest.raises(InputError, match='--size|--via mmdeploy'):
            export(*arguments, backbone=True)
    else:
        file, pipeline = export(*arguments, backbone=True)
        assert file.is_file() and json.loads(pipeline.read_text())['task'] == 'features'
