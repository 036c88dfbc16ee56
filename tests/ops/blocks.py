"""The two operators of a block of TransNeXt, as rows of `bioattn_mm.ops.samples`: they are called by blocks alone."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from bioattn_mm.ops import add_norm, cosine_attention, gated_convolution, gelu_pool
from bioattn_mm.ops.registration import differentiable
from bioattn_mm.ops.samples import ON_CPU_WITHOUT_FLOAT16, Grid, Operator, make_cosine_attention, randn

EPS = 1e-3


def aggregate(x: Tensor, *parameters: Tensor, backend: str) -> Tensor:
    if backend != 'reference':
        return differentiable('aggregate', x, *parameters, EPS, True)[0]
    q, kv, (pool_weight, pool_bias), norm = zip(parameters[:8:2], parameters[1:8:2])
    scale, _, _, _, rows, _, columns, *_ = of_attention = parameters[8:]
    to_pool = F.linear(x, pool_weight.flatten(1), pool_bias)
    pooled = gelu_pool(to_pool, (rows.shape[1], columns.shape[1]), 'reference')
    pooled = F.layer_norm(pooled.to(norm[0].dtype), pooled.shape[3:], *norm, EPS).to(x.dtype)
    query = F.linear(x, *q).unflatten(-1, (len(scale), -1))
    key_values = [F.linear(tokens, *kv).unflatten(-1, (2, len(scale), -1)) for tokens in (x, pooled)]
    return cosine_attention(query, *key_values, *of_attention, backend='reference').flatten(3)


def after_attention(x: Tensor, attended: Tensor, *parameters: Tensor, backend: str) -> Tensor:
    """The block's tokens, and their next norm."""
    if backend != 'reference':
        return torch.stack(differentiable('after_attention', x, attended, *parameters, EPS, True)[1::-1])
    (proj, norm, fc1, conv, fc2, next_norm), factors = zip(parameters[:12:2], parameters[1:12:2]), parameters[12:]
    add = partial(add_norm, backend='reference')
    norm, next_norm = ([tensor.to(x.dtype) for tensor in each] for each in (norm, next_norm))
    x, normed = add(x, F.linear(attended, *proj), *norm, EPS, factors[0])
    gated = gated_convolution(F.linear(normed, fc1[0]), *conv, 'reference', fc1[1])
    return torch.stack(add(x, F.linear(gated, *fc2), *next_norm, EPS, factors[1]))


def linear(inputs: int, outputs: int, *axes: int) -> list[Tensor]:
    """A weight that keeps the scale of its inputs, and a bias."""
    return [torch.randn(outputs, inputs, *axes) / max(inputs, 1) ** 0.5, torch.randn(outputs)]


def make_aggregate(
    batch: int = 2,
    grid: Grid = (5, 7),
    pooled_grid: Grid = (2, 3),
    heads: int = 2,
    channels: int = 8,
    window_size: int = 3,
    summands: int = 1,
) -> list[Tensor]:
    query, *_ = projections = make_cosine_attention(batch, grid, pooled_grid, heads, channels, window_size, summands)
    dims = heads * channels
    layers = *linear(dims, dims), *linear(dims, 2 * dims), *linear(dims, dims, 1, 1)
    return [query.flatten(3), *layers, *torch.randn(2, dims), *projections[3:]]


def make_after_attention(batch: int = 2, grid: Grid = (5, 7), channels: int = 16, hidden: int = 32) -> list[Tensor]:
    layers = *linear(channels, channels), *torch.randn(2, channels), *linear(channels, 2 * hidden)
    layers += *randn((hidden, 1, 3, 3), (hidden,)), *linear(hidden, channels), *torch.randn(2, channels)
    factors = 1.25 * (torch.arange(2 * batch) != 1).view(2, batch)  # a branch of the second image is dropped
    return [*torch.randn(2, batch, *grid, channels), *layers, *factors]


OF_BLOCKS = {
    'aggregate': Operator(
        aggregate,
        make_aggregate,
        [
            dict(),
            dict(grid=(16, 24), pooled_grid=(2, 3), channels=24),
            dict(grid=(3, 70), pooled_grid=(1, 7), channels=16, heads=1, summands=4),
            dict(grid=(1, 1), pooled_grid=(1, 1), window_size=1),
            dict(batch=0),
        ],
        dtypes=dict(cpu=ON_CPU_WITHOUT_FLOAT16),
        full_precision=(7, 8, 9, 10, 11, 12, 14, 16, 17),
        constants=(14,),
    ),
    'after_attention': Operator(
        after_attention,
        make_after_attention,
        [dict(), dict(grid=(1, 1), channels=34), dict(grid=(3, 70), channels=96, hidden=80), dict(batch=0)],
        dtypes=dict(cpu=ON_CPU_WITHOUT_FLOAT16),
        full_precision=(4, 5, 7, 8, 9, 12, 13, 14, 15),
        constants=(14, 15),
    ),
}
