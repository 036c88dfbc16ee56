"""No attention layer makes a tensor of all pairs of tokens."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bioattn_mm.ops import chunked_attention, relative_bias_attention
from bioattn_mm.systems.convit import GPSA
from bioattn_mm.systems.gab import GaussianRelPosAttention
from bioattn_mm.systems.transnext import LengthScaledAttention, LogCPB
from bioattn_mm.systems.vars import (
    ConvolutionalSparseReconstruction,
    GlobalFilter,
    PerformerAttention,
    SparseReconstructionAttention,
)

GRID, CHANNELS, HEADS = (40, 50), 8, 2
TOKENS = GRID[0] * GRID[1]
INPUT = TOKENS * CHANNELS
CHUNK = 4 * GRID[1] * HEADS * TOKENS  # four rows of queries
# Layers, and the numbers in the largest tensor that each may make.
LAYERS: dict[str, tuple[Callable[..., nn.Module], int]] = {
    'GPSA': (partial(GPSA, CHANNELS, HEADS), 5 * INPUT),
    # The hidden layer of the MLP, 128 numbers for each offset, or a chunk.
    'GAB': (partial(GaussianRelPosAttention, CHANNELS, HEADS, 2.0), max(128 * 79 * 99, CHUNK)),
    'log-CPB': (lambda: LengthScaledAttention(CHANNELS, HEADS, LogCPB(HEADS, (4, 4), hidden_dims=16)), CHUNK),
    'log-CPB, resized': (
        lambda: LengthScaledAttention(CHANNELS, HEADS, LogCPB(HEADS, (4, 4), 'interpolate', (4, 5), (4, 5))),
        CHUNK,
    ),
    # Real and imaginary parts for five kernels.
    'VARS-S': (partial(ConvolutionalSparseReconstruction, CHANNELS, (4, 6)), 10 * INPUT),
    'VARS-D': (partial(SparseReconstructionAttention, CHANNELS, HEADS), 10 * INPUT),
    'VARS-SD': (partial(SparseReconstructionAttention, CHANNELS, HEADS, (4, 6)), 10 * INPUT),
    'Performer': (partial(PerformerAttention, CHANNELS, HEADS), 10 * INPUT),
    'global filter': (partial(GlobalFilter, CHANNELS, (4, 6)), 10 * INPUT),
}


class Sizes(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # noqa: ANN001
        result = function(*args, **(kwargs or {}))
        self.found += [leaf.numel() for leaf in tree_leaves(result) if torch.is_tensor(leaf)]
        return result


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('name', LAYERS)
def test_no_tensor_of_all_pairs(name: str, training: bool, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('BIOATTN_MM_BACKEND', backend)
    monkeypatch.setattr(chunked_attention, 'MAX_WEIGHTS_PER_CHUNK', CHUNK)
    make, limit = LAYERS[name]
    if (name, backend) == ('log-CPB', 'cpu'):
        limit = 5 * INPUT  # the operator makes none
    layer = make()
    with torch.set_grad_enabled(training), Sizes() as sizes:
        output = layer(torch.randn(1, *GRID, CHANNELS, requires_grad=training))
        if training:
            output.sum().backward()
    assert sizes.found and max(sizes.found) <= limit < HEADS * TOKENS**2 / 7


@pytest.mark.parametrize(('grid', 'batch'), [((32, 32), 8), ((50, 84), 2), ((3, 2400), 1)])
def test_no_bias_of_all_pairs_on_a_gpu(grid: tuple[int, int], batch: int) -> None:
    """Beyond `NUMEL_ON_A_GPU`, of which a row of queries may need more by itself."""
    tokens = [torch.empty(batch, *grid, 6, 64, device='meta', requires_grad=True) for _ in range(3)]
    bias = torch.empty(6, *(2 * length - 1 for length in grid), device='meta', requires_grad=True)
    with Sizes() as sizes:
        relative_bias_attention(*tokens, bias).sum().backward()
    a_row = batch * 6 * grid[1] * grid[0] * grid[1]
    assert a_row <= max(sizes.found) <= max(a_row, chunked_attention.NUMEL_ON_A_GPU)
