"""Peripheral attention against the paper's formula over all pairs of tokens."""

import pytest
import torch

from bioattn_mm.systems.pervit import DistanceEmbedding, PeripheralAttention
from tests.ops.conftest import needs_library
from tests.systems.pervit.formula import GRIDS, POSITIONS, Grid, assert_same_with_gradients, phi_p, written_out


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
    assert_same_with_gradients(layer(x, embedding), written_out(layer, x, embedding), inputs)


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
    if mode == 'autocast':
        with torch.autocast('cpu', torch.bfloat16):
            output = layer(x, embedding)
            assert layer.position_bias((5, 6), embedding).dtype == torch.float32
    else:
        output = layer.bfloat16()(x.bfloat16(), embedding.bfloat16())
        assert layer.position_bias((5, 6), embedding).dtype == torch.float32
    assert output.dtype == torch.bfloat16
    assert (output.float() - exact).abs().max() < 0.03 * exact.abs().max()
    output.float().square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, in_pytorch: None) -> tuple[PeripheralAttention, DistanceEmbedding, list]:
    """Layers in eval mode, and a list that gets an entry whenever log Phi_p of all pairs is computed."""
    layer, embedding = make_layers()
    computed = []
    original = PeripheralAttention.position_bias

    def position_bias(self: PeripheralAttention, *args) -> torch.Tensor:
        computed.append(args)
        return original(self, *args)

    monkeypatch.setattr(PeripheralAttention, 'position_bias', position_bias)
    return layer.eval(), embedding, computed


@torch.no_grad()
@pytest.mark.parametrize(
    'change',
    [
        lambda layer, embedding: layer.position.conv2.weight.mul_(2),
        lambda layer, embedding: embedding.proj.weight.mul_(-1),
        lambda layer, embedding: embedding.load_state_dict({k: -v for k, v in embedding.state_dict().items()}),
        lambda layer, embedding: (layer.train(), layer.eval(), layer.position.norm2.weight.data.mul_(2)),
    ],
    ids=['in place', 'shared embedding', 'load_state_dict', 'train()'],
)
def test_cache_is_emptied_when_the_weights_change(counted, change) -> None:
    layer, embedding, computed = counted
    x = torch.randn(1, 3, 4, 12, dtype=torch.float64)
    layer(x, embedding)
    change(layer, embedding)
    torch.testing.assert_close(layer(x, embedding), written_out(layer, x, embedding))
    assert len(computed) == 2


def test_nothing_is_cached_with_gradients(counted) -> None:
    layer, embedding, computed = counted
    x = torch.randn(1, 3, 4, 12, dtype=torch.float64)
    for _ in range(2):
        layer(x, embedding).sum().backward()
        layer.train()
    assert not computed and len(layer._position_biases) == 0


@torch.no_grad()
def test_memory_of_the_cache_is_bounded(counted) -> None:
    layer, embedding, computed = counted
    layer._position_biases.max_bytes = 2 * 2 * 12**2 * 8  # two grids of 12 tokens, two heads, float64
    for grid in ((3, 4), (4, 3), (2, 6)):
        layer(torch.randn(1, *grid, 12, dtype=torch.float64), embedding)
    assert len(layer._position_biases) == 2
    x = torch.randn(1, 5, 5, 12, dtype=torch.float64)
    torch.testing.assert_close(layer(x, embedding), written_out(layer, x, embedding))
    assert len(computed) == 3  # the last grid was computed in chunks
