"""Gaussian attention bias against the paper's sliced table, and the attention of ViTs with it."""

from collections.abc import Callable

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor

from bioattn_mm.checkpoints import check_fit
from bioattn_mm.ops.chunked_attention import MAX_WEIGHTS_PER_CHUNK
from bioattn_mm.systems.gab import GaussianBias, GaussianRelPosAttention
from tests.needs import needs
from tests.systems.layers import check_formula

GRIDS = [(1, 1), (1, 5), (4, 4), (3, 7), (6, 2)]


def sliced_table(amplitude: Tensor, sigma: Tensor, grid: tuple[int, int]) -> Tensor:
    """Eq. 3 of the paper: each query slices the bias of its keys from a table of all offsets."""
    height, width = grid
    dy = torch.arange(1 - height, height, dtype=sigma.dtype)[:, None]
    dx = torch.arange(1 - width, width, dtype=sigma.dtype)
    table = amplitude**2 * torch.exp(-(dx**2 + dy**2) / (2 * sigma**2))
    queries = [
        table[height - 1 - row : 2 * height - 1 - row, width - 1 - column : 2 * width - 1 - column].flatten()
        for row in range(height)
        for column in range(width)
    ]
    return torch.stack(queries)


@pytest.mark.parametrize('grid', GRIDS, ids=str)
def test_equals_equation_3_in_values_and_gradients(grid: tuple[int, int]) -> None:
    layer = GaussianBias(2.3, 1.4).double()
    parameters = list(layer.parameters())
    tolerances = dict(values=dict(rtol=0, atol=1e-13), gradients=dict(rtol=0, atol=1e-12))
    check_formula(layer(grid), sliced_table(*parameters, grid), parameters, **tolerances)


def test_a_gaussian_of_each_head() -> None:
    """`num_heads` Gaussians are those of as many layers, in the bias and in a ViT's attention."""
    layer = GaussianBias(2.0, num_heads=2)
    layer.sigma.data, layer.amplitude.data = torch.tensor([2.0, 0.7]), torch.tensor([1.0, 1.5])
    wanted = torch.stack([GaussianBias(2.0, 1.0)((3, 4)), GaussianBias(0.7, 1.5)((3, 4))])
    torch.testing.assert_close(layer((3, 4)), wanted)
    assert layer.head_parameters()['gaussian_sigma'] == pytest.approx([2.0, 0.7])
    layer.load_state_dict(layer.state_dict())

    attention = GaussianRelPosAttention(8, 2, sigma=2.0, gaussian_per_head=True).eval()
    shared = GaussianRelPosAttention(8, 2, sigma=2.0).eval()
    shared.load_state_dict(
        {**attention.state_dict(), **shared.rel_pos.gaussian.state_dict(prefix='rel_pos.gaussian.')}
    )
    x, queries = torch.randn(1, 3, 4, 8), torch.tensor([5, 0])
    torch.testing.assert_close(attention(x), shared(x))
    own, of_all = (module.attention_maps(x, queries)['Gaussian'].weights for module in (attention, shared))
    assert own.shape[1] == 2
    torch.testing.assert_close(own, of_all.expand_as(own))


def test_sign_of_sigma_and_amplitude_does_not_matter() -> None:
    layer, mirrored = GaussianBias(2.0, 1.5), GaussianBias(2.0, -1.5)
    mirrored.sigma.data.neg_()
    torch.testing.assert_close(layer((3, 4)), mirrored((3, 4)))


def test_scalars_of_older_checkpoints_are_loaded() -> None:
    layer = GaussianBias(2.0)
    weights = dict(amplitude=torch.tensor(1.5), sigma=torch.tensor(3.0))
    check_fit('old.pth', weights, layer.state_dict())
    layer.load_state_dict(weights)
    torch.testing.assert_close(layer((3, 4)), GaussianBias(3.0, 1.5)((3, 4)))


def test_half_precision_on_a_long_axis() -> None:
    """Squares of offsets overflow in float16: the Gaussian has to be computed in float32."""
    layer = GaussianBias(200.0).half()
    bias = layer.table((1, 400))
    assert bias.dtype == torch.float32
    torch.testing.assert_close(bias, GaussianBias(200.0).table((1, 400)))


def attention_of_a_block(**options: object) -> GaussianRelPosAttention:
    layer = GaussianRelPosAttention(32, 2, sigma=2.0, **options).eval()
    for parameter in layer.parameters():
        parameter.data = parameter + 0.3 * torch.randn(parameter.shape)
    return layer


@needs('timm>=1.0.31')  # which has the model test_vit_relpos
@pytest.mark.parametrize('size', [(224, 224), (64, 96)], ids=str)
def test_bias_includes_that_of_timm_on_any_grid(size: tuple[int, int]) -> None:
    """The bias is that of a timm model built for the image size, plus eq. 3."""
    host = timm.create_model('test_vit_relpos', img_size=size).blocks[0].attn.rel_pos.eval()
    layer = GaussianRelPosAttention(96, 3, sigma=2.0, amplitude=1.2).rel_pos.eval()
    layer.mlp.load_state_dict(host.mlp.state_dict())
    grid = (size[0] // 16, size[1] // 16)
    gaussian = sliced_table(layer.gaussian.amplitude, layer.gaussian.sigma, grid)
    torch.testing.assert_close(layer.get_bias(grid), host.get_bias() + gaussian)


def stored(layer: GaussianRelPosAttention, x: Tensor) -> Tensor:
    """The layer with the bias of all pairs of tokens in memory."""
    query, key, value = layer.qkv(x).flatten(1, 2).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
    bias = layer.rel_pos.get_bias(tuple(x.shape[1:3]))
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=bias.to(query.dtype))
    return layer.proj(output.transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize('grid', GRIDS, ids=str)
def test_attention_equals_that_with_the_bias_of_all_pairs(grid: tuple[int, int]) -> None:
    layer = attention_of_a_block().double()
    x = torch.randn(2, *grid, 32, dtype=torch.float64, requires_grad=True)
    check_formula(layer(x), stored(layer, x), [x, *layer.parameters()])


def test_attention_in_half_precision() -> None:
    layer, x = attention_of_a_block(), torch.randn(2, 5, 6, 32)
    with torch.autocast('cpu', torch.bfloat16):
        output = layer(x)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), layer(x), rtol=0, atol=0.05 * layer(x).abs().max().item())
    half = layer.bfloat16()(x.bfloat16())
    torch.testing.assert_close(half.float(), output.float(), rtol=0, atol=0.05 * output.abs().max().item())


@pytest.mark.parametrize('training', [False, True])
def test_no_tensor_of_all_pairs(training: bool, backend: str, record_sizes: Callable, monkeypatch) -> None:
    monkeypatch.setenv('BIOATTN_MM_BACKEND', backend)
    layer = attention_of_a_block()
    with torch.set_grad_enabled(training), record_sizes() as sizes:
        output = layer(torch.randn(1, 52, 50, 32, requires_grad=training))
        if training:
            output.sum().backward()
    # The hidden layer of the MLP, 128 numbers for each offset, or a chunk of rows.
    largest = max(128 * (2 * 52 - 1) * (2 * 50 - 1), MAX_WEIGHTS_PER_CHUNK)
    assert max(sizes) <= largest < 2 * 2600**2 / 10
