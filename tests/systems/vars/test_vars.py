"""VARS: sparse reconstruction and the baselines against the papers' formulas, any grid, half precision; arguments."""

from pathlib import Path

import mmcv
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bioattn_mm.analysis.attention_recorder import record_attention
from bioattn_mm.ops.sparse_codes import gelu_threshold
from bioattn_mm.systems.vars import VARS
from bioattn_mm.systems.vars.attention import (
    THRESHOLDS,
    ConvolutionalSparseReconstruction,
    IstaReconstructionAttention,
    SparseReconstructionAttention,
)
from bioattn_mm.systems.vars.baselines import GlobalFilter, PerformerAttention
from tests.systems.common.small_backbones import ISTA, RVT
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


OF_GFNET = dict(type='bioattn_mm.ConvolutionalSparseReconstruction', with_mixing=False, num_kernels=1)


@pytest.mark.parametrize(
    'attention', ['vars_s', 'vars_d', 'vars_sd', OF_GFNET, ISTA, ISTA | dict(static_grid=None)], ids=str
)
def test_codes_and_gradients_are_not_zero(attention: str | dict, root: Path) -> None:
    """In every block, at the start and after ten steps: with lambda = 3.5, VARS-S has no code that is not zero."""
    pixels = mmcv.imresize(mmcv.imread(root / 'docs/chelsea.jpg'), (96, 96))
    picture = torch.from_numpy(pixels).float().permute(2, 0, 1)
    picture = (picture - picture.mean((1, 2), keepdim=True)) / picture.std((1, 2), keepdim=True)
    images = torch.stack([picture, picture.flip(-1)])
    arch = dict(block='rvt', embed_dims=[192, 384], depths=[3, 1], num_heads=[6, 12], feature_ratio=2)
    backbone = VARS(arch, attention, pretrain_size=96)
    optimizer = torch.optim.AdamW(backbone.parameters(), 1e-3)
    for step in range(11):
        optimizer.zero_grad()
        F.cross_entropy(backbone(images)[-1].mean((2, 3)), torch.arange(2)).backward()
        if step in (0, 10):
            for recording in record_attention(backbone.eval(), images):
                codes = recording.layer.recurrent_states(*recording.inputs)[1][-1]
                assert codes.isfinite().all() and (codes != 0).float().mean() > 0.01, recording.name
            for name, parameter in backbone.train().named_parameters():
                assert parameter.grad.isfinite().all() and parameter.grad.any(), name
        optimizer.step()


def test_arguments_reach_every_layer() -> None:
    """Those that are not given are the paper's, and not the release's, whose lambda of VARS-S is 3.5."""
    for attention, options, expected in (
        ('vars_s', {}, (3, 0.3, 'soft')),
        ('vars_d', {}, (3, 0.3, 'gelu')),
        ('vars_d', dict(num_steps=5, sparsity=0.1, threshold='soft'), (5, 0.1, 'soft')),
        ('vars_s', dict(threshold='gelu'), (3, 0.3, 'gelu')),
        (ISTA, {}, (3, 2.0, 'soft')),
        (ISTA | dict(static_grid=None), dict(num_steps=0, sparsity=0.0), (0, 0.0, 'soft')),
    ):
        backbone = VARS(RVT, attention, **options)
        for block, stride in zip(backbone.blocks, backbone.stage_strides, strict=True):
            layer = block.attn
            assert (layer.num_steps, layer.sparsity, layer.threshold) == (*expected[:2], THRESHOLDS[expected[2]])
            if isinstance(attention, dict):
                assert layer.static_grid == (None if 'static_grid' in attention else (224 // stride,) * 2)


def test_pooling_is_frozen_with_the_block_after_it() -> None:
    for last in (9, 10):
        pool = VARS(RVT, frozen_stages=last).train().pool
        assert all(module.training == (last == 9) for module in pool.modules())
        assert all(parameter.requires_grad == (last == 9) for parameter in pool.parameters())


@torch.no_grad()
@pytest.mark.parametrize(('attention', 'name'), [('vars_sd', 'static_grid'), ('vars_s', 'grid')])
def test_pretraining_size_is_the_grid_of_the_static_dictionaries(attention: str, name: str) -> None:
    backbone = VARS(RVT, attention, pretrain_size=(100, 160)).eval()
    assert [getattr(backbone.blocks[index].attn, name) for index in (0, 11)] == [(7, 10), (4, 5)]
    assert backbone(torch.randn(1, 3, 100, 160))[1].shape == (1, 16, 4, 5)
