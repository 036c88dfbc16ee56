"""Sparse reconstruction and the baselines: formulas of the papers, any grid, half precision."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bioattn_mm.systems.vars.attention import (
    ConvolutionalSparseReconstruction,
    IstaReconstructionAttention,
    SparseReconstructionAttention,
    gelu_threshold,
)
from bioattn_mm.systems.vars.baselines import GlobalFilter, PerformerAttention
from tests.systems.layers import check_formula, randomized, split_heads


def written_out(layer: SparseReconstructionAttention, x: Tensor) -> Tensor:
    """Eq. 12, 16 and 17 with what is learned besides: Gamma, w1 and w2."""
    query, value = (split_heads(part, 2) for part in layer.qkv(x).chunk(2, -1))
    unit = query / query.norm(dim=-1, keepdim=True)
    phi = torch.exp(unit @ layer.features.projection - 0.5) / layer.features.projection.shape[-1] ** 0.5
    if layer.static_grid:
        phi = torch.cat((phi, layer.static.expand(len(x), -1, -1, -1)), -1)
    phi = phi / phi.norm(dim=-2, keepdim=True)
    matrix, target = phi.mT @ phi, phi.mT @ value
    bound = (1 + matrix.abs().sum(-1).amax(-1)[..., None, None]).detach()
    w1 = w2 = 1
    if layer.is_learned:
        w1, w2 = layer.sparsity_scale, layer.step_scale
        matrix = layer.gram_weight @ matrix @ layer.gram_weight

    def threshold(u: Tensor, limit: Tensor | float) -> Tensor:
        size = u.abs() - limit
        return u.sign() * (F.gelu(size) if layer.threshold is gelu_threshold else size.clamp(min=0))

    codes = threshold(target, w1 * layer.sparsity)
    for _ in range(layer.num_steps):
        codes = threshold(codes - (matrix @ codes - target) * w2 / bound, w1 * layer.sparsity * w2 / bound)
    return layer.proj((phi @ codes).transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize('static_grid', [None, (3, 5)], ids=['dynamic', 'and static'])
@pytest.mark.parametrize(
    ('kind', 'options'),
    [
        (SparseReconstructionAttention, dict(num_steps=4)),
        (SparseReconstructionAttention, dict(sparsity=0.1, threshold='soft')),
        (IstaReconstructionAttention, {}),
        (IstaReconstructionAttention, dict(num_steps=4, sparsity=0.2, threshold='gelu')),
        (IstaReconstructionAttention, dict(num_steps=0, sparsity=0.0)),
    ],
    ids=str,
)
def test_is_the_formula_written_out(kind: type, options: dict, static_grid: tuple[int, int] | None) -> None:
    layer = randomized(kind(8, 2, static_grid, **options), 0.1)
    x = (3 * torch.randn(2, 3, 5, 8, dtype=torch.float64)).requires_grad_()
    output = layer(x)
    check_formula(output, written_out(layer, x), [x, *layer.parameters()])
    dictionary, states = layer.recurrent_states(x)
    assert len(states) == layer.num_steps + 1
    torch.testing.assert_close(layer.proj((dictionary @ states[-1]).transpose(1, 2).reshape(x.shape)), output)
    if not layer.num_steps:  # attention with the kernel P P^T (section 3.4)
        (maps,) = layer.attention_maps(x, torch.arange(15)).values()
        torch.testing.assert_close(maps.weights.flatten(-2), dictionary @ dictionary.mT)


@pytest.mark.parametrize('options', [{}, dict(num_kernels=1, with_mixing=False)], ids=['VARS-S', 'of GFNet'])
def test_output_of_the_convolution_is_that_of_the_last_state(options: dict) -> None:
    layer, x = ConvolutionalSparseReconstruction(8, (4, 6), sparsity=0.1, **options), torch.randn(2, 4, 6, 8)
    dictionary, states = layer.recurrent_states(x)
    output = torch.fft.irfft2((torch.fft.rfft2(states[-1]) * dictionary.conj()).sum(2), s=(4, 6))
    if options:  # table 2: the static dictionary alone
        assert {name for name, _ in layer.named_parameters()} == {'kernel', 'norm.weight', 'norm.bias'}
    else:
        output = torch.fft.irfft2(torch.fft.rfft2(output) * torch.view_as_complex(layer.mix_kernel), s=(4, 6))
    torch.testing.assert_close(layer(x), layer.proj(layer.norm(output).permute(0, 2, 3, 1)))


def test_global_filter_is_a_convolution_of_each_channel() -> None:
    layer = GlobalFilter(3, (4, 5)).double()
    x = torch.randn(2, 4, 5, 3, dtype=torch.float64)
    kernel = torch.fft.irfft2(torch.view_as_complex(layer.kernel), s=(4, 5))
    shifted = sum(
        kernel[:, row, column] * x.roll((row, column), dims=(1, 2)) for row in range(4) for column in range(5)
    )
    torch.testing.assert_close(layer(x), shifted)


def test_static_dictionary_on_another_grid() -> None:
    layer = SparseReconstructionAttention(8, 2, (7, 7)).double()
    ramp = torch.linspace(-1, 1, 7, dtype=torch.float64)
    layer.static.data = (ramp[:, None] + 2 * ramp).reshape(1, 49, 1).expand_as(layer.static).contiguous()
    static = layer._static_columns((14, 21), torch.float64).unflatten(1, (14, 21))[0, ..., 0]
    # Resizing a plane gives a plane, except at the borders.
    rows, columns = ((torch.arange(n).double() + 0.5) * 7 / n / 3 - 7 / 6 for n in (14, 21))
    torch.testing.assert_close(static[4:-4, 6:-6], (rows[:, None] + 2 * columns)[4:-4, 6:-6])


@pytest.mark.parametrize('grid', [(9, 13), (4, 13), (6, 6), (3, 5)])
def test_convolution_on_another_grid_keeps_the_offsets(grid: tuple[int, int]) -> None:
    """A kernel weight belongs to an offset in tokens, on every grid."""
    layer = ConvolutionalSparseReconstruction(8, (4, 6)).double()
    own = torch.fft.irfft2(layer.dictionary((4, 6)), s=(4, 6))
    other = torch.fft.irfft2(layer.dictionary(grid), s=grid)
    want = torch.zeros_like(other)
    for row in range(-2, 2):
        for column in range(-3, 3):
            want[..., row % grid[0], column % grid[1]] += own[..., row % 4, column % 6]
    torch.testing.assert_close(other, want)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ('kind', 'arguments'),
    [
        (ConvolutionalSparseReconstruction, dict(grid=(14, 14), sparsity=0.1)),
        (SparseReconstructionAttention, dict(num_heads=2)),
        (SparseReconstructionAttention, dict(num_heads=2, static_grid=(14, 14))),
        (PerformerAttention, dict(num_heads=2)),
        (GlobalFilter, dict(grid=(14, 14))),
    ],
    ids=str,
)
def test_half_precision_of_many_tokens(kind: type, arguments: dict, dtype: torch.dtype) -> None:
    layer = kind(16, **arguments).eval()
    # A large common offset: sums over tokens overflow in float16 and lose their digits in bfloat16.
    x = 3 * torch.randn(1, 128, 128, 16) + 20
    x[0, :, :, 0] = 1000
    with torch.no_grad():
        exact = layer(x)
        with torch.autocast('cpu', dtype):
            mixed = layer(x)
        rounded = layer.to(dtype)(x.to(dtype))
    for output in (mixed, rounded):
        # The filter has no linear layer, which autocast would run in half precision.
        assert output.dtype == (x.dtype if kind is GlobalFilter and output is mixed else dtype)
        assert output.isfinite().all()
        assert (output.float() - exact).abs().max() < 0.1 * exact.abs().max()
