"""What mmdeploy replaces while it traces: each mechanism, rewritten and in onnxruntime, against the eager one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from mmcv.cnn.bricks.transformer import AdaptivePadding
from mmengine.config import Config
from mmseg.structures import SegDataSample
from torch import Tensor, nn

from bioattn_mm.systems.common.blocks import PositionEmbedding, SoftmaxAttention
from bioattn_mm.systems.convit import GPSA
from bioattn_mm.systems.gab.vit_attention import GaussianRelPosAttention
from bioattn_mm.systems.pervit import DistanceEmbedding, PeripheralAttention, PositionAttention
from bioattn_mm.systems.transnext import AggregatedAttention, LengthScaledAttention, LogCPB
from bioattn_mm.systems.transnext.ablations import PixelFocusedAttention, RelativePositionBias
from bioattn_mm.systems.vars import PerformerAttention, SparseReconstructionAttention
from tests.needs import module_needs

pytestmark = module_needs('mmdeploy', 'onnx', 'onnxruntime')

import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from mmdeploy.core import RewriterContext  # noqa: E402
from mmdeploy.utils import IR  # noqa: E402

import bioattn_mm.export.mmdeploy  # noqa: E402, F401
from bioattn_mm.export.mmdeploy.tasks import SegmentationModel  # noqa: E402

ROOT = Path(__file__).parents[3]
OPSET = 17
CHANNELS = 12
# The first one is traced.
GRIDS = [(6, 8), (5, 7), (9, 4), (8, 6)]


class Called(nn.Module):
    """A module or function, and how it is called with an image, (B, H, W, C)."""

    def __init__(self, function: Callable, call: Callable[[Callable, Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.call = function, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.function, x)


def peripheral(attention: type[PeripheralAttention] = PeripheralAttention, **options: object) -> Called:
    """Peripheral attention, which the backbone gives its distance embedding."""
    parts = nn.ModuleList([attention(CHANNELS, 2, **options), DistanceEmbedding(2)])
    return Called(parts, lambda parts, x: parts[0](x, parts[1]))


def windows(shift: int) -> Called:
    """Windows as GABSwin has them."""
    # Not at the top: it imports mmpretrain, which takes seconds.
    from mmpretrain.models.utils import ShiftWindowMSA

    from bioattn_mm.systems.gab.swin_attention import GaussianWindowMSA

    options = dict(window_size=4, shift_size=shift, pad_small_map=True, window_msa=GaussianWindowMSA, sigma=1.5)
    attention = ShiftWindowMSA(CHANNELS, 2, **options)
    return Called(attention, lambda layer, x: layer(x.flatten(1, 2), tuple(x.shape[1:3])).reshape(x.shape))


def of_map(function: Callable[[Tensor], Tensor]) -> Called:
    """A function of (B, C, H, W)."""
    return Called(function, lambda function, x: function(x.permute(0, 3, 1, 2)))


def log_cpb(bias_mode: str = 'extrapolate', ratio: int = 1) -> LogCPB:
    train_grid = (6, 6)
    return LogCPB(2, (7, 7), bias_mode, train_grid, tuple(length // ratio for length in train_grid))


def masked_attention(x: Tensor) -> Tensor:
    """Attention between columns whose mask is boolean, with a scale of its own."""
    x = x.permute(0, 2, 3, 1)  # (B, H, W, C)
    mask = torch.ones(x.shape[2], x.shape[2]).tril() > 0
    return F.scaled_dot_product_attention(x, 2 * x, x + 1, attn_mask=mask, scale=0.5)


CASES: dict[str, Callable[[], nn.Module]] = {
    'aggregated attention': lambda: AggregatedAttention(CHANNELS, 2, log_cpb(ratio=2), 2),
    'aggregated attention, interpolated': lambda: AggregatedAttention(CHANNELS, 2, log_cpb('interpolate', 2), 2),
    'aggregated attention, linear': lambda: AggregatedAttention(CHANNELS, 2, log_cpb(), 2, pool_size=(3, 2)),
    'aggregated attention, pooled to one token': lambda: AggregatedAttention(CHANNELS, 2, log_cpb(), 5),
    'aggregated attention, window of 5': lambda: AggregatedAttention(CHANNELS, 2, log_cpb(), 3, window_size=5),
    'length-scaled attention': lambda: LengthScaledAttention(CHANNELS, 2, log_cpb()),
    'length-scaled attention, interpolated': lambda: LengthScaledAttention(CHANNELS, 2, log_cpb('interpolate')),
    'pixel-focused attention': lambda: PixelFocusedAttention(CHANNELS, 2, log_cpb(), 2),
    'aggregated attention, learned bias': lambda: AggregatedAttention(
        CHANNELS, 2, RelativePositionBias(2, (6, 6), (3, 3)), 2
    ),
    'GPSA': lambda: GPSA(CHANNELS, 4),
    'peripheral attention': peripheral,
    'peripheral attention by position alone': lambda: peripheral(PositionAttention),
    'peripheral attention of one layer': lambda: peripheral(position=dict(type='VariedPosition', num_layers=1)),
    'peripheral attention of two layers': lambda: peripheral(position=dict(type='VariedPosition', num_layers=2)),
    'Gaussian bias': lambda: GaussianRelPosAttention(CHANNELS, 2, sigma=1.5),
    'windows': lambda: windows(0),
    'shifted windows': lambda: windows(2),
    'VARS-D': lambda: SparseReconstructionAttention(CHANNELS, 2, sparsity=0.05),
    'VARS-SD': lambda: SparseReconstructionAttention(CHANNELS, 2, (7, 6), sparsity=0.05),
    'Performer': lambda: PerformerAttention(CHANNELS, 2),
    'softmax attention': lambda: SoftmaxAttention(CHANNELS, 2),
    'position embedding, from a finer grid': lambda: PositionEmbedding(CHANNELS, (11, 13)),
    'position embedding, from a coarser grid': lambda: PositionEmbedding(CHANNELS, (4, 3)),
    'adaptive pooling': lambda: of_map(lambda x: F.adaptive_avg_pool2d(x, (3, 5))),
    'adaptive pooling to more cells': lambda: of_map(lambda x: F.adaptive_avg_pool2d(x, 10)),
    'shape of an unflattened map': lambda: of_map(
        lambda x: F.adaptive_avg_pool2d(x.flatten(2).unflatten(2, x.shape[2:]), (3, 5))
    ),
    'padding': lambda: of_map(AdaptivePadding(kernel_size=4, stride=4, padding='corner')),
    'masked attention': lambda: of_map(masked_attention),
    # Off its grid, with zeros outside.
    'grid sampling': lambda: of_map(
        lambda x: F.grid_sample(x, 1.5 * x[:, :2].permute(0, 2, 3, 1).tanh(), align_corners=False)
    ),
}


# Ablations, which are exported for images of one size.
OF_ONE_SIZE = ('peripheral attention of one layer', 'peripheral attention of two layers')
Case = tuple[nn.Module, list[Tensor], list[Tensor]]
Rewritten = tuple[Config, dict[str, Case]]


def make_case(make_module: Callable[[], nn.Module]) -> Case:
    """A module with random parameters, images of all grids, and what it gives for them."""
    module = make_module().eval()
    for parameter in module.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    inputs = [torch.randn(1, *grid, CHANNELS) for grid in GRIDS]
    return module, inputs, [module(x) for x in inputs]


@pytest.fixture(scope='module')
def rewritten() -> Iterator[Rewritten]:
    """mmdeploy's context with its config, and the cases with what the modules gave outside of it.

    One context for all tests, because mmdeploy searches the memory for every function that it replaces, 10 s in all.
    """
    config = Config.fromfile(ROOT / 'configs/deploy/segmentation_onnxruntime_dynamic.py')
    with torch.no_grad():
        cases = {name: make_case(make_module) for name, make_module in CASES.items()}
        with RewriterContext(config, backend='onnxruntime', ir=IR.ONNX, opset=OPSET):
            yield config, cases


@pytest.mark.filterwarnings('ignore:You are using the legacy TorchScript-based ONNX export')
@pytest.mark.parametrize(
    ('name', 'size'),
    [(name, size) for name in CASES for size in ('static', 'dynamic') if size == 'static' or name not in OF_ONE_SIZE],
)
def test_rewritten_and_exported_are_the_eager_one(name: str, size: str, rewritten: Rewritten, tmp_path: Path) -> None:
    config, cases = rewritten
    (module, inputs, outputs), file = cases[name], tmp_path / 'module.onnx'
    # The config speaks of images, (B, C, H, W).
    config.ir_config.dynamic_axes = {'input': {2: 'height', 3: 'width'}} if size == 'dynamic' else None
    axes = {'input': {1: 'height', 2: 'width'}} if size == 'dynamic' else None
    pairs = [*zip(inputs, outputs)][: len(GRIDS) if axes else 1]
    for x, expected in pairs:
        torch.testing.assert_close(module(x), expected, atol=1e-5, rtol=1e-5)

    torch.onnx.export(module, (inputs[0],), file, input_names=['input'], opset_version=OPSET, dynamic_axes=axes)
    # In any runtime: no operator but ONNX's own.
    assert {node.domain for node in onnx.load(file).graph.node} <= {'', 'ai.onnx'}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options)
    for x, expected in pairs:
        (output,) = session.run(None, {'input': x.numpy()})
        torch.testing.assert_close(torch.from_numpy(output), expected, atol=2e-5, rtol=1e-4)


def test_scores_without_an_argmax_are_resized() -> None:
    deploy = Config(dict(codebase_config=dict(type='mmseg', with_argmax=False)))
    model = SimpleNamespace(deploy_cfg=deploy, align_corners=False)
    sample = SegDataSample(metainfo=dict(ori_shape=(8, 6)))
    (result,) = SegmentationModel.pack_result(model, torch.randn(1, 3, 4, 3), [sample])
    assert result.seg_logits.shape == result.pred_sem_seg.shape == (8, 6)
