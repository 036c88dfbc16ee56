"""Blocks whose residuals and norms run in one operator, as on a GPU: the values of those that run them one by one."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bioattn_mm.layers import aggregated_attention, half_precision
from bioattn_mm.models import TransNeXt
from bioattn_mm.models.backbones import blocks

SMALL = dict(embed_dims=(8, 8, 16, 16), num_heads=(1, 1, 2, 2), depths=(2, 1, 1, 2))
ADDITIONS = 2 * sum(SMALL['depths'])


@pytest.fixture
def fuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Tensor]]:
    """From its call on blocks are fused, with the operator's formula; it gives the list of what is then added."""

    def fuse() -> list[Tensor]:
        added = []

        def add_norm(x: Tensor, branch: Tensor, *arguments: object) -> tuple[Tensor, Tensor]:
            added.append(branch)
            return operator(x, branch, *arguments)

        monkeypatch.setattr(blocks, 'has_add_norm', lambda x: True)
        monkeypatch.setattr(aggregated_attention, 'has_gelu_pool_norm', lambda x, grid: True)
        monkeypatch.setattr(blocks, 'add_norm', add_norm)
        return added

    operator = blocks.add_norm
    return fuse


def model(**options) -> TransNeXt:
    torch.manual_seed(0)
    backbone = TransNeXt(SMALL, **options).train()
    for name, parameter in backbone.named_parameters():
        if name.endswith('bias'):  # they begin as zeros, which would hide that one is left out
            nn.init.normal_(parameter, std=0.1)
    return backbone


def step(backbone: nn.Module, autocast: bool = False) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and gradients of a step; of few tokens in the last stage, gradients would be rounding in bfloat16."""
    torch.manual_seed(1)
    with torch.autocast('cpu', torch.bfloat16, autocast):
        outputs = backbone(torch.randn(4, 3, 64, 64))
    sum(output.float().square().mean() for output in outputs).backward()
    return list(outputs), [parameter.grad for parameter in backbone.parameters()]


@pytest.mark.parametrize(
    'options',
    [
        dict(),
        # Their forward passes are others than those of the classes that they come from.
        dict(
            token_mixers=[dict(type='DynamicBiasAttention')] * 3 + [dict()],
            channel_mixer=dict(type='OtherConvGLU', design=2),
        ),
    ],
    ids=['default', 'ablation'],
)
def test_values(options: dict, fuse: Callable[[], list[Tensor]]) -> None:
    expected = step(model(**options))
    added = fuse()
    torch.testing.assert_close(step(model(**options)), expected, rtol=1e-4, atol=1e-5)
    assert len(added) == ADDITIONS


def test_products_of_the_same_tokens() -> None:
    """Queries, keys with values, and what is pooled: in one function, and layer by layer as a hook wants them."""
    expected = step(model())
    backbone, seen = model(), []
    for stage in backbone.stages[:3]:
        for block in stage.blocks:
            block.attn.q.register_forward_hook(lambda *arguments: seen.append(arguments))
    torch.testing.assert_close(step(backbone), expected, rtol=1e-4, atol=1e-6)
    assert len(seen) == sum(SMALL['depths'][:3])


def test_mixed_precision(fuse: Callable[[], list[Tensor]], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = step(model(), autocast=True)
    added = fuse()
    monkeypatch.setattr(half_precision, 'takes_bfloat16', torch.is_autocast_enabled)
    (outputs, gradients), (want, want_gradients) = step(model(), autocast=True), expected
    assert len(added) == ADDITIONS and {tensor.dtype for tensor in added} == {torch.bfloat16}
    for got, exact in zip(outputs, want, strict=True):
        torch.testing.assert_close(got, exact, rtol=0, atol=0.02 * exact.abs().max().item())
    for got, exact in zip(gradients, want_gradients, strict=True):
        assert got.dtype == torch.float32
        assert (got - exact).norm() <= 0.1 * exact.norm() + 1e-4


@pytest.mark.parametrize('autocast', [False, True])
def test_activations_are_computed_again(
    autocast: bool, fuse: Callable[[], list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half_precision, 'takes_bfloat16', torch.is_autocast_enabled)
    added = fuse()
    expected = step(model(drop_path_rate=0.5), autocast)
    kept = len(added)
    torch.testing.assert_close(step(model(drop_path_rate=0.5, with_cp=True), autocast), expected, rtol=0, atol=0)
    assert (kept, len(added) - kept) == (ADDITIONS, 2 * ADDITIONS)


def test_what_attention_layers_compute_together() -> None:
    def together(**options) -> list[tuple[Tensor, ...]]:
        stage = model(**options).stages[0]
        return blocks._of_parameters(stage.blocks, grid)

    grid, alone = (8, 16), [(), ()]
    backbone = model()
    for stage in (0, 3):
        layers = [block.attn for block in backbone.stages[stage].blocks]
        for layer, (table, scale) in zip(layers, aggregated_attention.computed_together(layers, grid), strict=True):
            pooled_grid = layer.pooled_grid(grid) if stage == 0 else grid
            torch.testing.assert_close(table, layer.position_bias.table(grid, pooled_grid)[0])
            torch.testing.assert_close(scale, F.softplus(layer.scale.temperature))
    assert aggregated_attention.computed_together(layers[:1], grid) == [()]
    # Others have parts that it does not know, or a bias of another grid.
    assert together(position_bias=dict(type='LinearCPB')) == together(bias_mode='interpolate') == alone
    assert together(token_mixers=dict(scale=dict(type='LearnedScaleQuery'))) == alone
    layers[1].position_bias.pretrain_grid = (5, 5)
    assert aggregated_attention.computed_together(layers, grid) == alone
    # A hook of the attention may gather its parameters; in eval mode the tables are kept.
    stage = backbone.stages[0].blocks
    handle = stage[1].attn.register_forward_pre_hook(lambda *arguments: None)
    assert blocks._of_parameters(stage, grid) == alone
    handle.remove()
    assert blocks._of_parameters(stage, grid) != alone
    with torch.no_grad():
        assert blocks._of_parameters(stage.eval(), grid) == alone


def test_stochastic_depth() -> None:
    stage = model(drop_path_rate=0.5).stages[3].blocks
    torch.manual_seed(0)
    (first, last), rates = blocks._drop_path_factors(stage, torch.empty(4000, 1)), (0.4, 0.5)
    for factors, rate in zip((first, last), rates):
        assert factors.shape == (2, 4000)
        torch.testing.assert_close(factors.unique(), torch.tensor([0, 1 / (1 - rate)]))
        torch.testing.assert_close(factors.mean(1), torch.ones(2), rtol=0, atol=0.06)
        assert not torch.equal(*factors)
    assert blocks._drop_path_factors(stage.eval(), torch.empty(3, 1)) == [None, None]


def test_float16_of_autocast_is_not_fused(fuse: Callable[[], list[Tensor]]) -> None:
    # A GPU's norms and sums are float32 there, and the branches float16.
    stage = model().stages[0]
    fuse()
    for dtype, is_fused in ((torch.float32, False), (torch.float16, True)):
        with torch.autocast('cpu', torch.float16):
            assert blocks._is_fused(stage.blocks, torch.zeros(1, 2, 3, 8, dtype=dtype), stage.norm) == is_fused
    assert blocks._is_fused(stage.blocks, torch.zeros(1, 2, 3, 8), stage.norm)


def test_what_others_look_at_is_called_one_by_one(fuse: Callable[[], list[Tensor]]) -> None:
    backbone, added, seen = model(), fuse(), []
    stage = backbone.stages[0]
    for module in (stage.blocks[1], stage.blocks[0].norm2, stage.norm):
        handle = module.register_forward_hook(lambda *arguments: seen.append(arguments))
        step(backbone)
        handle.remove()
        assert (len(seen), len(added)) == (1, ADDITIONS - 2 * len(stage.blocks))
        seen.clear(), added.clear()
    # A branch is called as a whole, and so is a last layer that is no plain one.
    handle = stage.blocks[0].attn.register_forward_hook(lambda *arguments: seen.append(arguments))
    expected = step(backbone)[0]
    assert (len(seen), len(added)) == (1, ADDITIONS)
    stage.blocks[0].mlp.fc2 = nn.Sequential(stage.blocks[0].mlp.fc2)
    torch.testing.assert_close(step(backbone)[0], expected)
