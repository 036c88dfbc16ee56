"""The sliding window's operators against their formulas, written out query by query."""

import itertools

import pytest
import torch
from torch import Tensor

from bioattn_mm.ops import sliding_window_av
from bioattn_mm.ops.samples import OPERATORS
from tests.ops.conftest import Place
from tests.ops.kernels import check, inputs_of


def seen(height: int, width: int, window_size: int) -> list[tuple[int, int, int, int, int]]:
    """(i, j, offset, y, x) for every pair of a position and a token of its window that is inside the image."""
    pairs = []
    for i, j, u, v in itertools.product(*map(range, (height, width, window_size, window_size))):
        y, x = i + u - window_size // 2, j + v - window_size // 2
        if 0 <= y < height and 0 <= x < width:
            pairs.append((i, j, u * window_size + v, y, x))
    return pairs


def qk_written_out(query: Tensor, key: Tensor, bias: Tensor, backend: None = None) -> Tensor:
    logits = query.new_full((*query.shape[:4], bias.shape[1]), float('-inf'))
    for i, j, offset, y, x in seen(*query.shape[1:3], round(bias.shape[1] ** 0.5)):
        logits[:, i, j, :, offset] = (query[:, i, j] * key[:, y, x]).sum(-1) + bias[:, offset]
    return logits


def av_written_out(weights: Tensor, value: Tensor, backend: None = None) -> Tensor:
    output = torch.zeros_like(value)
    for i, j, offset, y, x in seen(*value.shape[1:3], round(weights.shape[-1] ** 0.5)):
        output[:, i, j] += weights[:, i, j, :, offset, None] * value[:, y, x]
    return output


SIZES = [
    dict(),
    dict(window_size=5),
    dict(window_size=7, grid=(8, 9)),
    dict(window_size=9, grid=(3, 14)),
    dict(window_size=1),
    dict(window_size=9, grid=(1, 1)),
    dict(batch=1, grid=(3, 41), heads=3, channels=24),  # more than one block of threads in a row
    dict(channels=5),  # which no vector of several channels divides
    dict(batch=0),
    dict(channels=0),
]


@pytest.mark.parametrize(
    ('sizes', 'dtype'),
    [
        *((sizes, torch.float64) for sizes in SIZES),
        *((dict(channels=24), dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32)),
    ],
    ids=str,
)
def test_values_and_gradients_equal_those_of_the_formula(sizes: dict, dtype: torch.dtype, place: Place) -> None:
    """In half precision products are summed in float32: the only other rounding is that of the result itself."""
    tolerance = {torch.float16: 2**-11, torch.bfloat16: 2**-8}.get(dtype)
    for name, formula in (('sliding_window_qk', qk_written_out), ('sliding_window_av', av_written_out)):
        check(name, inputs_of(name, dtype, **sizes), place, tolerance, formula)


def test_weights_outside_the_image_do_nothing(place: Place) -> None:
    of_qk, (weights, value) = (
        OPERATORS[f'sliding_window_{of}'].inputs({}, place.device, torch.float64) for of in ('qk', 'av')
    )
    outside = qk_written_out(*of_qk).isinf()
    assert 0 < outside.sum() < outside.numel()
    changed = weights.masked_fill(outside, float('inf')).requires_grad_()
    output = sliding_window_av(changed, value, backend=place.backend)
    assert torch.equal(output, sliding_window_av(weights, value, backend=place.backend))
    (gradient,) = torch.autograd.grad(output.sum(), changed)
    assert torch.equal(gradient == 0, outside)
