"""Gaussian attention bias against the paper's sliced table, as a stored bias and inside the attention kernel."""

import warnings
from collections.abc import Callable

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from bioattn_mm.errors import InputError
from bioattn_mm.layers import GaussianBias, GaussianRelPosAttention, bias_of_pairs

GRIDS = [(1, 1), (1, 5), (4, 4), (3, 7), (6, 2)]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason='flex_attention for training needs a GPU')


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
    bias, wanted = layer(grid), sliced_table(*parameters, grid)
    torch.testing.assert_close(bias, wanted, rtol=0, atol=1e-13)
    upstream = torch.randn_like(bias)
    gradients, want = (torch.autograd.grad(y, parameters, upstream) for y in (bias, wanted))
    torch.testing.assert_close(gradients, want, rtol=0, atol=1e-12)


def test_gradcheck() -> None:
    layer = GaussianBias(1.7, -0.6).double()
    names = [name for name, _ in layer.named_parameters()]

    def function(*values: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, values)), ((3, 4),))

    assert torch.autograd.gradcheck(function, tuple(layer.parameters()))
    assert torch.autograd.gradgradcheck(function, tuple(layer.parameters()))


@pytest.mark.parametrize('grid', GRIDS, ids=str)
def test_pairs_of_a_table_that_is_not_symmetric(grid: tuple[int, int]) -> None:
    height, width = grid
    table = torch.randn(2, 2 * height - 1, 2 * width - 1)
    rows, columns = (grid.flatten() for grid in torch.meshgrid(*map(torch.arange, grid), indexing='ij'))
    row = rows[:, None] - rows + height - 1  # query - key
    column = columns[:, None] - columns + width - 1
    torch.testing.assert_close(bias_of_pairs(table, grid), table[:, row, column])


def test_sign_of_sigma_and_amplitude_does_not_matter() -> None:
    layer, mirrored = GaussianBias(2.0, 1.5), GaussianBias(2.0, -1.5)
    mirrored.sigma.data.neg_()
    torch.testing.assert_close(layer((3, 4)), mirrored((3, 4)))


def test_half_precision_on_a_long_axis() -> None:
    """Squares of offsets overflow in float16: the Gaussian has to be computed in float32."""
    layer = GaussianBias(200.0).half()
    bias = layer.table((1, 400))
    assert bias.dtype == torch.float32
    torch.testing.assert_close(bias, GaussianBias(200.0).table((1, 400)))


def test_sigma_that_is_not_positive() -> None:
    with pytest.raises(InputError, match='sigma must be positive, got 0'):
        GaussianBias(0)


def attention_inputs(grid: tuple[int, int], device: str = 'cpu') -> list[Tensor]:
    """Query, key and value, (2, 3, N, 16), and the table of a second bias."""
    tokens = [torch.randn(2, 3, grid[0] * grid[1], 16, device=device) for _ in range(3)]
    return [*tokens, torch.randn(3, 2 * grid[0] - 1, 2 * grid[1] - 1, device=device)]


def stored(layer: GaussianBias, grid: tuple[int, int], inputs: list[Tensor]) -> Tensor:
    """Attention with the bias stored for all pairs of tokens."""
    query, key, value, table = inputs
    bias = bias_of_pairs(table, grid) + layer(grid)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)


@pytest.mark.parametrize('grid', [(4, 4), (3, 7)], ids=str)
def test_inside_the_attention_kernel(grid: tuple[int, int]) -> None:
    """flex_attention without compilation; on a CPU it has gradients for the bias only."""
    layer = GaussianBias(2.0, 1.3)
    inputs = attention_inputs(grid)
    inputs[3].requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # warning: flex_attention is not compiled
        output = flex_attention(*inputs[:3], score_mod=layer.score_mod(grid, inputs[3]))
    wanted = stored(layer, grid, inputs)
    torch.testing.assert_close(output, wanted)
    parameters = [inputs[3], *layer.parameters()]
    gradients, want = (torch.autograd.grad(y.square().sum(), parameters) for y in (output, wanted))
    torch.testing.assert_close(gradients, want, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize('grid', [(4, 4), (3, 7)], ids=str)
def test_inside_the_attention_kernel_as_torch_compile_traces_it(grid: tuple[int, int]) -> None:
    """Traced as one graph but not compiled to C++, which would take a minute."""
    layer = GaussianBias(2.0, 1.3)
    inputs = attention_inputs(grid)

    def attend(*inputs: Tensor) -> Tensor:
        return flex_attention(*inputs[:3], score_mod=layer.score_mod(grid, inputs[3]))

    output = torch.compile(attend, backend='aot_eager', fullgraph=True)(*inputs)
    torch.testing.assert_close(output, stored(layer, grid, inputs))


@needs_gpu
@pytest.mark.parametrize('grid', [(4, 4), (33, 47)], ids=str)
def test_inside_the_compiled_kernel_of_the_gpu(grid: tuple[int, int]) -> None:
    layer = GaussianBias(2.0, 1.3).cuda()
    inputs = [tensor.requires_grad_() for tensor in attention_inputs(grid, 'cuda')]
    output = torch.compile(flex_attention)(*inputs[:3], score_mod=layer.score_mod(grid, inputs[3]))
    wanted = stored(layer, grid, inputs)
    torch.testing.assert_close(output, wanted, rtol=1e-2, atol=1e-2)  # TF32 in the kernel
    parameters = [*inputs, *layer.parameters()]
    gradients, want = (torch.autograd.grad(y.square().sum(), parameters) for y in (output, wanted))
    for gradient, reference in zip(gradients, want):
        assert (gradient - reference).norm() < 1e-2 * reference.norm() + 1e-3


def attention_of_a_block(**options: object) -> GaussianRelPosAttention:
    layer = GaussianRelPosAttention(32, 2, sigma=2.0, **options).eval()
    for parameter in layer.parameters():
        parameter.data = parameter + 0.3 * torch.randn(parameter.shape)
    return layer


@pytest.mark.parametrize('size', [(224, 224), (64, 96)], ids=str)
def test_bias_includes_that_of_timm_on_any_grid(size: tuple[int, int]) -> None:
    """The bias is that of a timm model built for the image size, plus eq. 3."""
    pytest.importorskip('timm', minversion='1.0.31', reason='no model test_vit_relpos in older ones')
    host = timm.create_model('test_vit_relpos', img_size=size).blocks[0].attn.rel_pos.eval()
    layer = GaussianRelPosAttention(96, 3, sigma=2.0, amplitude=1.2).rel_pos.eval()
    layer.mlp.load_state_dict(host.mlp.state_dict())
    grid = (size[0] // 16, size[1] // 16)
    gaussian = sliced_table(layer.gaussian.amplitude, layer.gaussian.sigma, grid)
    torch.testing.assert_close(layer.get_bias(grid), host.get_bias() + gaussian)


def test_attention_with_the_bias_in_the_kernel() -> None:
    layer = attention_of_a_block()
    in_kernel = attention_of_a_block(bias_in_kernel=True)
    in_kernel.load_state_dict(layer.state_dict())
    x = torch.randn(2, 3, 5, 32)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter('ignore')  # warning: flex_attention is not compiled
        torch.testing.assert_close(in_kernel(x), layer(x))


def test_the_kernel_has_no_backward_on_a_cpu_where_the_bias_is_stored() -> None:
    layer = attention_of_a_block(bias_in_kernel=True)
    layer(torch.randn(2, 3, 5, 32)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


@needs_gpu
def test_attention_with_the_bias_in_the_kernel_of_the_gpu() -> None:
    layer = attention_of_a_block().cuda()
    in_kernel = attention_of_a_block(bias_in_kernel=True).cuda()
    in_kernel.load_state_dict(layer.state_dict())
    x = torch.randn(2, 33, 47, 32, device='cuda')
    outputs = layer(x), in_kernel(x)
    torch.testing.assert_close(*outputs, rtol=1e-2, atol=1e-2)
    for output in outputs:
        output.square().mean().backward()
    for a, b in zip(layer.parameters(), in_kernel.parameters(), strict=True):
        assert (a.grad - b.grad).norm() < 1e-2 * a.grad.norm() + 1e-4


def test_in_the_kernel_no_tensor_of_all_pairs_is_made_for_the_bias(record_sizes: Callable) -> None:
    layer = GaussianBias(2.0)
    with record_sizes() as sizes:
        layer.score_mod((40, 50))
    assert max(sizes) < 2 * 50
