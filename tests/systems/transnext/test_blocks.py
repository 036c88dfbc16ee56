"""The operators that compute a stage's blocks against its layers, which other tests hold to the authors' code."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from timm.layers import DropPath
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import prune

from bioattn_mm.ops.add_norm import MAX_CHANNELS
from bioattn_mm.systems.transnext import TransNeXt, blocks, half_precision
from bioattn_mm.systems.transnext.half_precision import LayerNorm
from bioattn_mm.training.strategies import FSDP2Strategy
from tests.ops.conftest import needs_library
from tests.systems.common.small_backbones import TRANSNEXT

pytestmark = needs_library

SMALL = dict(embed_dims=(24, 48, 48, 96), num_heads=(1, 2, 2, 4), depths=(2, 1, 2, 2))
STAGES = len(SMALL['depths'])


def model(**options) -> TransNeXt:
    torch.manual_seed(0)
    backbone = TransNeXt(**{'arch': SMALL, **options}).train()
    for name, parameter in backbone.named_parameters():
        if name.endswith('bias'):  # they begin as zeros, which would hide that one is left out
            nn.init.normal_(parameter, std=0.1)
    return backbone


def step(
    backbone: nn.Module, autocast: torch.dtype | None = None, size: tuple[int, int] = (96, 64)
) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs, and gradients of the image and of the parameters."""
    torch.manual_seed(1)
    image = torch.randn(2, 3, *size, dtype=next(backbone.parameters()).dtype, requires_grad=True)
    backbone.zero_grad()
    with torch.autocast('cpu', autocast or torch.bfloat16, enabled=autocast is not None):
        outputs = backbone(image)
    sum(output.float().square().mean() for output in outputs).backward()
    return list(outputs), [image.grad, *(parameter.grad for parameter in backbone.parameters())]


@pytest.fixture
def by_operators(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The tokens of each stage whose blocks were computed by operators."""
    seen = []

    def run(self: blocks.Blocks, x: Tensor, *parameters: object) -> Tensor:
        seen.append(x)
        return by_operators(self, x, *parameters)

    by_operators = blocks.Blocks._operators
    monkeypatch.setattr(blocks.Blocks, '_operators', run)
    return seen


def by_layers(backbone: nn.Module, *arguments: object, **options: object) -> tuple[list[Tensor], list[Tensor]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, '_may_be_operators', lambda x: False)
        return step(backbone, *arguments, **options)


def assert_close(results: tuple[list[Tensor], list[Tensor]], expected: tuple[list[Tensor], list[Tensor]]) -> None:
    """Of two steps: outputs, which are of the order of 1, and gradients, which are far smaller."""
    for each, wanted, atol in zip(results, expected, (5e-6, 1e-7), strict=True):
        torch.testing.assert_close(each, wanted, rtol=1e-4, atol=atol)


@pytest.mark.parametrize(
    'options',
    [
        dict(),
        dict(with_cp=True),
        dict(frozen_stages=1),
        dict(frozen_stages=3),  # the gradient of the image alone
        dict(bias_mode='interpolate', img_size=64, out_indices=(2,)),
        dict(arch=dict(SMALL, sr_ratios=(16, 8, 4, 2))),
        dict(pool_size=(2, 3), window_size=5),
    ],
    ids=str,
)
@pytest.mark.parametrize('size', [(96, 64), (75, 133)], ids=str)
def test_values_and_gradients(options: dict, size: tuple[int, int], by_operators: list[Tensor]) -> None:
    backbone = model(**options)
    results = step(backbone, size=size)
    assert len(by_operators) == len(backbone.stages)
    assert_close(results, by_layers(backbone, size=size))


def test_double_precision_and_a_model_in_bfloat16(by_operators: list[Tensor]) -> None:
    backbone = model().double()
    torch.testing.assert_close(step(backbone), by_layers(backbone), rtol=1e-10, atol=1e-12)
    backbone = model().bfloat16()
    torch.testing.assert_close(step(backbone)[0], by_layers(backbone)[0], rtol=0.05, atol=0.05)
    assert len(by_operators) == 2 * STAGES


@pytest.mark.parametrize('with_cp', [False, True])
def test_bfloat16_is_as_near_to_float32_as_in_layers(with_cp: bool, by_operators: list[Tensor]) -> None:
    backbone = model(with_cp=with_cp)
    exact, layers = step(backbone), by_layers(backbone, torch.bfloat16)
    results = step(backbone, torch.bfloat16)
    assert len(by_operators) == 2 * STAGES
    assert {gradient.dtype for gradient in results[1]} == {torch.float32}
    for got, other, want in zip(*(each[0] + each[1] for each in (results, layers, exact)), strict=True):
        assert (got - want).norm() <= 1.2 * (other - want).norm() + 0.02 * want.norm() + 1e-4


def test_branches_of_less_precision_than_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU has them in float16."""
    stage, x = model().stages[0], torch.randn(2, 8, 12, 24, requires_grad=True)
    factors = torch.tensor([[1.5, 0], [0.5, 2]])
    monkeypatch.setattr(blocks, '_drop_path', lambda stage, x: [factors] * len(stage))
    results = []
    for autocast in (False, True):
        with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
            output = stage.blocks(x, stage.norm)
        assert output.dtype == torch.float32
        results.append([output, *torch.autograd.grad(output[..., 0].sum(), [x, *stage.blocks.parameters()])])
    for want, got in zip(*results, strict=True):
        assert (got - want).norm() < 0.05 * want.norm() + 1e-3


def test_stochastic_depth() -> None:
    stage = model(drop_path_rate=0.5).stages[3].blocks
    torch.manual_seed(0)
    for factors, rate in zip(blocks._drop_path([*stage], torch.empty(4000, 1)), (5 / 12, 0.5), strict=True):
        factors = torch.stack(factors)
        torch.testing.assert_close(factors.unique(), torch.tensor([0, 1 / (1 - rate)]))
        torch.testing.assert_close(factors.mean(1), torch.ones(2), rtol=0, atol=0.06)
        assert not torch.equal(*factors)
    assert blocks._drop_path([*stage.eval()], torch.empty(3, 1)) == [(None, None)] * 2


def test_blocks_of_a_stage_may_have_other_units_of_coordinates(by_operators: list[Tensor]) -> None:
    backbone = model()
    backbone.stages[0].blocks[1].attn.position_bias.pretrain_grid = (5, 5)
    assert_close(step(backbone), by_layers(backbone))
    assert len(by_operators) == STAGES


# What others do to a stage.
CHANGES: dict[str, Callable[[nn.Module], object]] = {
    'hook': lambda stage: stage.blocks[0].attn.q.register_forward_hook(lambda *_: None),
    'other forward': lambda stage: setattr(stage.blocks[0].mlp, 'forward', stage.blocks[0].mlp.forward),
    'adapter': lambda stage: setattr(stage.blocks[0].mlp.fc2, '__class__', type('Adapted', (nn.Linear,), {})),
    'parametrization': lambda stage: nn.utils.parametrizations.weight_norm(stage.blocks[1].attn.proj),
    'pruning': lambda stage: prune.random_unstructured(stage.blocks[1].attn.kv, 'weight', 0.5),
    'other norm': lambda stage: setattr(stage, 'norm', nn.LayerNorm(24)),
    'other eps': lambda stage: setattr(stage.blocks[1].norm2, 'eps', 1e-2),
    'other pooled grid': lambda stage: setattr(stage.blocks[1].attn, 'pool_size', (1, 1)),
    'all dropped': lambda stage: setattr(stage.blocks[1], 'drop_path', DropPath(1.0)),
}


@pytest.mark.parametrize('change', CHANGES)
def test_a_changed_stage_is_called_layer_by_layer(change: str, by_operators: list[Tensor]) -> None:
    backbone = model()
    step(backbone)
    CHANGES[change](backbone.stages[0])
    by_operators.clear()
    results = step(backbone)
    assert len(by_operators) == STAGES - 1
    assert_close(results, by_layers(backbone))


def test_with_a_global_hook_all_stages_are_called_layer_by_layer(by_operators: list[Tensor]) -> None:
    backbone = model()
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    step(backbone)
    hook.remove()
    assert not by_operators


@pytest.mark.parametrize('name', ['dynamic bias', 'no embedding', 'type 2', 'no bias'])
def test_ablations_are_called_layer_by_layer(name: str, by_operators: list[Tensor]) -> None:
    step(model(**TRANSNEXT[name]))
    assert len(by_operators) == (name in ('dynamic bias', 'no bias'))  # which the last stage does without


@pytest.mark.parametrize(
    ('changes', 'fits'),
    [
        (dict(), True),
        (dict(dtype=torch.float64), False),
        (dict(hidden_dims=129), False),
        (dict(channels=63, aggregates=False), False),
        (dict(channels=MAX_CHANNELS, aggregates=False), True),
        (dict(channels=MAX_CHANNELS + 2, aggregates=False), False),
        (dict(channels=128), True),
        *((dict(channels=2 * head_dims), head_dims == 8) for head_dims in (4, 8, 12, 72)),
        (dict(window_size=9), True),
        (dict(window_size=11), False),
        (dict(pooled_grid=(3, 2)), False),
        (dict(pooled_grid=(2, 3)), False),
        (dict(pooled_grid=(3, 3), training=False), True),
    ],
    ids=str,
)
def test_what_the_kernels_of_a_gpu_take(changes: dict, fits: bool) -> None:
    given = dict(channels=64, hidden_dims=128, window_size=3, pooled_grid=(2, 4), aggregates=True, training=True)
    given = SimpleNamespace(**given | dict(dtype=torch.float32) | changes)
    block = Mock()
    block.attn.configure_mock(num_heads=2, window_size=given.window_size)
    block.attn.proj.out_features, block.mlp.dwconv.in_channels = given.channels, given.hidden_dims
    block.attn.pooled_grid.return_value = given.pooled_grid
    with FakeTensorMode():
        x = torch.empty(2, 8, 8, given.channels, dtype=given.dtype, device='cuda')
    with torch.set_grad_enabled(given.training):
        assert blocks._fits_kernels(block, given.aggregates, x) == fits


def test_functional_call_takes_the_parameters_that_it_gets(by_operators: list[Tensor]) -> None:
    backbone, image = model(), torch.randn(1, 3, 64, 64)
    halved = {name: 0.5 * parameter for name, parameter in backbone.named_parameters()}
    got = torch.func.functional_call(backbone, halved, image)
    backbone.load_state_dict({**backbone.state_dict(), **halved})
    torch.testing.assert_close(got, backbone(image))
    assert len(by_operators) == 2 * STAGES


def test_a_replica_without_parameters_is_no_other_model() -> None:
    def replica_of(module: nn.Module) -> nn.Module:
        """What DataParallel makes of a module before it gives each part its parameters, as attributes."""
        replica = module._replicate_for_data_parallel()
        replica._modules = {name: replica_of(child) for name, child in module._modules.items()}
        return replica

    backbone = model()
    step(backbone)
    stage, x = backbone.stages[0], torch.zeros(1, 8, 8, 24)
    assert blocks.columns_of(stage.blocks, stage.norm, x) is not None
    replica = replica_of(stage)
    assert blocks.columns_of(replica.blocks, replica.norm, x) is None


def test_there_is_no_second_derivative() -> None:
    image = torch.randn(1, 3, 64, 64, requires_grad=True)
    output = model(out_indices=(0,))(image)[0].square().sum()
    (gradient,) = torch.autograd.grad(output, image, create_graph=True)
    with pytest.raises(RuntimeError, match='no second one; try BIOATTN_MM_BACKEND=reference'):
        gradient.sum().backward()


def test_layer_norm_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_precision, 'takes_bfloat16', torch.is_autocast_enabled)
    norm, x = LayerNorm(64), 3 + torch.randn(5, 64)
    nn.init.normal_(norm.weight, 1, 0.1)
    nn.init.normal_(norm.bias)
    with torch.autocast('cpu', torch.bfloat16):
        output = norm(x)
    assert output.dtype == torch.bfloat16
    # The input, weights and output are rounded to 1/256; of the input 3 is the mean.
    torch.testing.assert_close(output.float(), norm(x), rtol=0.02, atol=0.03)
    results = step(model(), torch.bfloat16)
    assert [{tensor.dtype for tensor in tensors} for tensors in results] == [{torch.bfloat16}, {torch.float32}]


def test_gradients_of_float16() -> None:
    """Operators sum in float32; in formulas small gradients of float16 vanish without a scale."""
    for got, want in zip(step(model(), torch.float16)[1], step(model())[1], strict=True):
        assert (got - want).norm() < 0.05 * want.norm() + 1e-4


def test_parameters_of_ddp_and_fsdp(one_process: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrapped() -> nn.Module:
        return nn.Sequential(OrderedDict(backbone=model()))

    def gradients(network: nn.Module) -> list[Tensor]:
        found = step(network, torch.bfloat16)[1]
        return [gradient.full_tensor() if isinstance(gradient, DTensor) else gradient for gradient in found]

    torch.testing.assert_close(gradients(DistributedDataParallel(wrapped())), gradients(wrapped()))
    of_parts = gradients(FSDP2Strategy(work_dir=str(tmp_path))._wrap_model(wrapped()))
    # FSDP has parts of the parameters, which layers gather when they are called.
    monkeypatch.setattr(blocks, '_may_be_operators', lambda x: False)
    torch.testing.assert_close(of_parts, gradients(wrapped()))


def test_a_gpu_takes_bfloat16_and_keeps_float16_apart() -> None:
    dtypes = []
    with FakeTensorMode(allow_non_fake_inputs=True):
        norm, x = LayerNorm(8, device='cuda'), torch.empty(2, 8, device='cuda')
        for dtype in (torch.bfloat16, torch.float16):
            torch.set_autocast_enabled('cuda', True)
            torch.set_autocast_dtype('cuda', dtype)
            try:
                dtypes.append(norm(x.to(dtype)).dtype)
            finally:
                torch.set_autocast_enabled('cuda', False)
                torch.set_autocast_dtype('cuda', torch.float16)
                torch.clear_autocast_cache()
    assert dtypes == [torch.bfloat16, torch.float32]
