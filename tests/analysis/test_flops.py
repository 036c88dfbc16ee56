"""Multiply-adds against what they are written out."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bioattn_mm.analysis.flops import count_multiply_adds
from bioattn_mm.errors import InputError
from bioattn_mm.ops import sliding_window_av, sliding_window_qk
from bioattn_mm.ops.backends import choose_backend
from bioattn_mm.systems.pervit import DistanceEmbedding, PeripheralAttention
from bioattn_mm.systems.transnext import AggregatedAttention, LengthScaledAttention, LogCPB
from bioattn_mm.systems.vars import ConvolutionalSparseReconstruction

H, W, C, HEADS = 8, 10, 16, 2
N = H * W
X = torch.randn(1, H, W, C)


class Call(nn.Module):
    """A module or function with further arguments."""

    def __init__(self, function: Callable, *args: object) -> None:
        super().__init__()
        self.function, self.args = function, args

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.args)


def twice(function: Callable, x: Tensor, *args: object) -> list[int]:
    """Of a size not seen before, and of one seen before."""
    network = Call(function, *args).eval()
    return [count_multiply_adds(network, x)[''] for _ in range(2)]


def count(function: Callable, x: Tensor, *args: object) -> int:
    return twice(function, x, *args)[0]


def test_convolution_and_linear() -> None:
    network = nn.Sequential()
    network.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
    network.grouped = nn.Conv2d(8, 8, 5, groups=4)
    network.linear = nn.Linear(12, 7)
    counts = count_multiply_adds(network, torch.randn(2, 3, 9, 31))  # to 5 x 16, 1 x 12
    wanted = dict(conv=2 * 5 * 16 * 8 * 3 * 9, grouped=2 * 12 * 8 * 2 * 25, linear=2 * 8 * 12 * 7)
    assert counts == {'': sum(wanted.values()), **wanted}


def test_attention_of_pytorch() -> None:
    attention = nn.MultiheadAttention(C, HEADS, batch_first=True)
    # In eval mode it would run on its fast path.
    assert count(lambda x: attention.eval()(x, x, x)[0], torch.randn(1, N, C)) == 4 * N * C**2 + 2 * N**2 * C
    assert torch.backends.mha.get_fastpath_enabled()


def test_attention_samples_and_windows() -> None:
    query, key, value = (torch.randn(2, 3, length, 4) for length in (5, 7, 7))
    for mask in ((), (torch.zeros(5, 7),)):
        assert count(F.scaled_dot_product_attention, query, key, value, *mask) == 2 * 3 * 5 * 7 * (4 + 4)
    grid, sample = torch.rand(1, 5, 6, 2), partial(F.grid_sample, align_corners=False)
    assert count(sample, torch.randn(1, 3, 8, 8), grid) == 4 * 3 * 5 * 6
    tokens = torch.randn(2, 5, 6, 3, 4)
    assert count(sliding_window_qk, tokens, tokens, torch.zeros(3, 25)) == 2 * 30 * 3 * 4 * 25
    assert count(sliding_window_av, torch.rand(2, 5, 6, 3, 9), tokens) == 2 * 30 * 3 * 4 * 9


CONTENT = N * 4 * C**2 + 2 * N**2 * C  # of softmax attention between all tokens


def test_attention_of_transnext() -> None:
    """For a size not seen before the position bias is computed."""
    layer, pooled, window = AggregatedAttention(C, HEADS, LogCPB(HEADS, (4, 4)), sr_ratio=2), 4 * 5, 9
    # q, kv, pool_proj, proj; kv of the pooled; token weights; attention.
    wanted = N * C * 5 * C + pooled * C * 2 * C + N * C * window + 2 * N * C * (window + pooled)
    # 8 rows and 4 cells of 2 have 14 offsets, 10 and 5 have 18, for each an MLP of 512 channels runs once.
    assert twice(layer, X) == [wanted + 14 * 18 * 512 * HEADS, wanted]
    layer, of_size = LengthScaledAttention(C, HEADS, LogCPB(HEADS, (4, 4))), (2 * H - 1) * (2 * W - 1) * 512 * HEADS
    assert twice(layer, X) == [CONTENT + of_size, CONTENT]


def test_refuses_where_the_window_is_not_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('BIOATTN_MM_BACKEND', 'reference')
    layer = AggregatedAttention(C, HEADS, LogCPB(HEADS, (4, 4)), sr_ratio=2)
    with pytest.raises(InputError, match='counted at the compiled operators'):
        count(layer, X)
    assert count(LengthScaledAttention(C, HEADS, LogCPB(HEADS, (4, 4))), X) > 0


@pytest.mark.parametrize('backend', ['', 'reference'], ids=['compiled', 'reference'])
@pytest.mark.parametrize('cache_bytes', [2**29, 0])
def test_peripheral_attention(backend: str, cache_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('BIOATTN_MM_BACKEND', backend)
    kept = cache_bytes > 0 and choose_backend(X.device, None) == 'reference'
    hidden = 4 * HEADS
    distances = (2 * H + 3) * (2 * W + 3) * hidden
    plane, position = (2 * H + 1) * (2 * W + 1) * 9 * hidden**2, N * N * 9 * hidden * HEADS
    first, later = twice(PeripheralAttention(C, HEADS, cache_bytes), X, DistanceEmbedding(HEADS))
    assert first == CONTENT + distances + plane + position
    assert later == (CONTENT if kept else CONTENT + distances + position)  # the plane is always kept


def test_convolutional_sparse_reconstruction() -> None:
    steps, atoms, frequencies = 2, 5, H * (W // 2 + 1)
    layer = ConvolutionalSparseReconstruction(C, (H, W), num_steps=steps)
    # Forward and back: of values and codes for the target, of codes in each step, and in decoding; the second filter.
    transforms = (1 + atoms) + steps * 2 * atoms + (atoms + 1) + 2
    products = atoms + steps * 2 * atoms + atoms + 1
    wanted = 2 * N * C**2 + C * (transforms * 1.25 * N * math.log2(N) + products * 4 * frequencies)
    assert count(layer, X) == pytest.approx(wanted, rel=1e-6)
