"""Peripheral attention against the paper's formula over all pairs of tokens."""

from collections.abc import Callable

import pytest
import torch

from bioattn_mm.systems.pervit import DistanceEmbedding, PeripheralAttention

from .formula import CHANNELS, GRIDS, HEADS, POSITIONS, check, embedding_of, layer_of, phi_p, tokens, written_out

every_grid = pytest.mark.parametrize('grid', GRIDS)


@pytest.fixture
def in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where there is no compiled operator: log Phi_p is cached in eval mode."""
    monkeypatch.setenv('BIOATTN_MM_BACKEND', 'reference')


@every_grid
def test_is_the_formula_written_out(grid: tuple[int, int], backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('BIOATTN_MM_BACKEND', backend)
    check(layer_of(), tokens(grid), embedding_of())


@every_grid
@torch.no_grad()
def test_exported_means_of_windows_are_the_same(grid: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    position, distances = layer_of().position, embedding_of()(grid)
    expected = position.hidden_plane(distances)
    monkeypatch.setattr('bioattn_mm.systems.pervit.attention.is_exported', lambda: True)
    monkeypatch.setattr(torch.nn.functional, 'avg_pool2d', None)  # its size would be a constant
    torch.testing.assert_close(position.hidden_plane(distances), expected)


@every_grid
@pytest.mark.parametrize('position', POSITIONS)
@torch.no_grad()
def test_what_analysis_and_the_cache_read_is_the_same(position: str, grid: tuple[int, int], in_pytorch: None) -> None:
    layer, embedding, x = layer_of(position), embedding_of(), tokens(grid)
    want = phi_p(layer.position, embedding, grid)
    parts = [part.weights[0].flatten(-2) for _, part in layer.position_attention(grid, embedding)]
    torch.testing.assert_close(torch.cat(parts, dim=1), want)
    bias = layer.position_bias(grid, embedding)
    torch.testing.assert_close(bias, want.log() - want.log().amax(-1, keepdim=True))
    for _ in range(2):
        torch.testing.assert_close(layer(x, embedding), written_out(layer, x, embedding))
    assert len(layer._position_biases) == 1


def test_frozen_position_gets_no_gradient() -> None:
    layer, embedding = layer_of(), embedding_of()
    layer.position.requires_grad_(False)
    layer(tokens((3, 4)), embedding).square().sum().backward()
    assert all(parameter.grad is None for parameter in layer.position.parameters())
    assert layer.qkv.weight.grad.abs().sum() > 0
    # The embedding gets its gradient through the plane of offsets.
    assert embedding.proj.weight.grad.abs().sum() > 0


@pytest.mark.parametrize('mode', ['autocast', 'half weights'])
@pytest.mark.parametrize('position', POSITIONS)
def test_bfloat16_computes_phi_p_in_float32(position: str, mode: str) -> None:
    layer = PeripheralAttention(CHANNELS, HEADS, position=POSITIONS[position])
    embedding, x = DistanceEmbedding(HEADS), torch.randn(2, 5, 6, CHANNELS)
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
    layer, embedding, x = layer_of(), embedding_of(), tokens((3, 4))
    layer(x, embedding)
    change(layer, embedding)
    torch.testing.assert_close(layer(x, embedding), written_out(layer, x, embedding))


@torch.no_grad()
def test_a_grid_that_needs_more_than_the_cache_is_computed_in_chunks(in_pytorch: None) -> None:
    # For 12 tokens, two heads, float64.
    layer, embedding = layer_of(cache_bytes=2 * 12**2 * 8), embedding_of()
    for grid in ((5, 5), (13, 1), (3, 4)):
        x = tokens(grid)
        torch.testing.assert_close(layer(x, embedding), written_out(layer, x, embedding))
        assert len(layer._position_biases) == (grid == (3, 4))
