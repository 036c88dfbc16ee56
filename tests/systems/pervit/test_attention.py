"""Peripheral attention against the paper's formula over all pairs of tokens."""

from collections.abc import Callable

import pytest
import torch

from bioattn_mm.systems.pervit import DistanceEmbedding, PeripheralAttention
from tests.ops.conftest import needs_library
from tests.systems.pervit.formula import GRIDS, POSITIONS, Grid, check, phi_p, written_out


def make_layers(embed_dims: int = 12, num_heads: int = 2) -> tuple[PeripheralAttention, DistanceEmbedding]:
    """A float64 layer whose parameters all affect the output, and its distance embedding."""
    attention = PeripheralAttention(embed_dims, num_heads).double()
    for name, parameter in attention.position.named_parameters():
        if name.startswith('norm'):
            parameter.data.normal_(1.0 if name.endswith('weight') else 0.0)
    return attention, DistanceEmbedding(num_heads).double()


@pytest.fixture
def in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where there is no compiled operator: log Phi_p is cached in eval mode."""
    monkeypatch.setenv('BIOATTN_MM_BACKEND', 'reference')


@pytest.mark.parametrize('grid', GRIDS)
@pytest.mark.parametrize('backend', ['reference', pytest.param('cpu', marks=needs_library)])
def test_is_the_formula_written_out(grid: Grid, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('BIOATTN_MM_BACKEND', backend)
    layer, embedding = make_layers()
    x = torch.randn(3, *grid, 12, dtype=torch.float64, requires_grad=True)
    inputs = [x, *layer.parameters(), *embedding.parameters()]
    check(layer(x, embedding), written_out(layer, x, embedding), inputs)


@pytest.mark.parametrize('grid', GRIDS)
@torch.no_grad()
def test_exported_means_of_windows_are_the_same(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, embedding = make_layers()
    expected = layer.position.hidden_plane(embedding(grid))
    monkeypatch.setattr('bioattn_mm.systems.pervit.attention.is_exported', lambda: True)
    torch.testing.assert_close(layer.position.hidden_plane(embedding(grid)), expected)


@pytest.mark.parametrize('grid', GRIDS)
@torch.no_grad()
def test_cached_bias_gives_the_same_output(grid: Grid, in_pytorch: None) -> None:
    layer, embedding = make_layers()
    x = torch.randn(2, *grid, 12, dtype=torch.float64)
    layer.eval()
    for _ in range(2):
        torch.testing.assert_close(layer(x, embedding), written_out(layer, x, embedding))
    assert len(layer._position_biases) == 1


@torch.no_grad()
def test_position_bias_is_log_phi_p_minus_its_maximum() -> None:
    layer, embedding = make_layers()
    want = phi_p(layer.position, embedding, (3, 5)).log()
    bias = layer.position_bias((3, 5), embedding)
    torch.testing.assert_close(bias, want - want.amax(-1, keepdim=True))


@pytest.mark.slow
@needs_library
@torch.no_grad()
def test_compiles_whole() -> None:
    torch.compiler.reset()
    layer, embedding = make_layers()
    compiled = torch.compile(layer, backend='aot_eager', fullgraph=True)
    for grid in ((4, 6), (5, 3)):  # the second one is compiled for any size
        x = torch.randn(2, *grid, 12, dtype=torch.float64)
        torch.testing.assert_close(compiled(x, embedding), layer(x, embedding))


def test_frozen_position_gets_no_gradient() -> None:
    layer, embedding = make_layers()
    layer.position.requires_grad_(False)
    layer(torch.randn(1, 3, 4, 12, dtype=torch.float64), embedding).square().sum().backward()
    assert all(parameter.grad is None for parameter in layer.position.parameters())
    assert layer.qkv.weight.grad.abs().sum() > 0
    # The embedding gets its gradient through the plane of offsets.
    assert embedding.proj.weight.grad.abs().sum() > 0


@pytest.mark.parametrize('mode', ['autocast', 'half weights'])
@pytest.mark.parametrize('position', [None, *POSITIONS])
def test_bfloat16_computes_phi_p_in_float32(position: str | None, mode: str) -> None:
    layer, embedding = make_layers()
    if position is not None:
        layer = PeripheralAttention(12, 2, position=dict(type='VariedPosition', **POSITIONS[position]))
    layer, embedding = layer.float(), embedding.float()
    x = torch.randn(2, 5, 6, 12)
    exact = layer(x, embedding)
    if mode == 'half weights':
        layer, x, embedding = layer.bfloat16(), x.bfloat16(), embedding.bfloat16()
    with torch.autocast('cpu', torch.bfloat16, enabled=mode == 'autocast'):
        output = layer(x, embedding)
        assert layer.position_bias((5, 6), embedding).dtype == torch.float32
    assert output.dtype == torch.bfloat16
    assert (output.float() - exact).abs().max() < 0.03 * exact.abs().max()
    output.float().square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@torch.no_grad()
@pytest.mark.parametrize(
    'change',
    [
        lambda layer, embedding: embedding.proj.weight.mul_(-1),
        lambda layer, embedding: (layer.train(), layer.position.norm2.weight.data.mul_(2), layer.eval()),
    ],
    ids=['shared embedding', 'train()'],
)
def test_cache_is_emptied_when_the_weights_change(change: Callable, in_pytorch: None) -> None:
    layer, embedding = make_layers()
    x = torch.randn(1, 3, 4, 12, dtype=torch.float64)
    layer.eval()(x, embedding)
    change(layer, embedding)
    torch.testing.assert_close(layer(x, embedding), written_out(layer, x, embedding))


@torch.no_grad()
def test_a_grid_that_needs_more_than_the_cache_is_computed_in_chunks(in_pytorch: None) -> None:
    embedding = make_layers()[1]
    layer = PeripheralAttention(12, 2, cache_bytes=2 * 12**2 * 8).double().eval()  # 12 tokens, two heads, float64
    for grid in ((5, 5), (13, 1), (3, 4)):
        x = torch.randn(1, *grid, 12, dtype=torch.float64)
        torch.testing.assert_close(layer(x, embedding), written_out(layer, x, embedding))
        assert len(layer._position_biases) == (grid == (3, 4))
