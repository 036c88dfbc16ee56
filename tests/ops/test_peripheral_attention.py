"""Peripheral attention against its formula, written out query by query."""

import inspect
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from bioattn_mm.ops import peripheral_attention
from bioattn_mm.ops.peripheral_attention import log_phi
from bioattn_mm.ops.portable import portable_formulas
from bioattn_mm.ops.samples import OPERATORS

OPERATOR = OPERATORS['peripheral_attention']


def written_out(*inputs: torch.Tensor) -> torch.Tensor:
    """Equations 5 to 8 of the paper for one query at a time."""
    x = SimpleNamespace(**dict(zip(inspect.signature(peripheral_attention).parameters, inputs)))
    _, height, width = x.scale.shape
    output = []
    for i in range(height):
        for j in range(width):
            top, left = height - 1 - i, width - 1 - j
            window = x.plane[:, top : top + height + 2, left : left + width + 2]
            hidden = (window * x.scale[:, top, left, None, None] + x.shift[:, top, left, None, None]).clamp(min=0)
            phi = F.conv2d(hidden[None], x.conv_weight, x.conv_bias)[0].flatten(1)
            phi = (phi - phi.mean(1, keepdim=True)) / (phi.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
            phi = torch.sigmoid(phi * x.norm_weight[:, None] + x.norm_bias[:, None])
            logits = torch.einsum('bhd,bhkd->bhk', x.query[:, :, i * width + j], x.key) / x.query.shape[-1] ** 0.5
            weights = logits.softmax(-1) * phi
            output.append(torch.einsum('bhk,bhkd->bhd', weights / weights.sum(-1, keepdim=True), x.value))
    return torch.stack(output, dim=2)


@pytest.mark.parametrize(
    'sizes',
    [
        dict(),
        dict(grid=(1, 1), batch=1),
        dict(grid=(1, 7)),
        dict(grid=(7, 1), heads=1, channels=1),
        dict(grid=(5, 15), heads=6, channels=33),
    ],
    ids=str,
)
def test_equals_the_formula(sizes: dict, backend: str) -> None:
    inputs = OPERATOR.inputs(sizes, 'cpu', torch.float64)
    output = peripheral_attention(*inputs, backend=backend)
    torch.testing.assert_close(output, written_out(*inputs), rtol=1e-9, atol=1e-9)


def test_extreme_logits_stay_finite(backend: str) -> None:
    inputs = OPERATOR.inputs({}, 'cpu', torch.float32)
    inputs[0] *= 1e4
    inputs[-1] -= 1000  # the sigmoid itself is 0
    assert all(result.isfinite().all() for result in OPERATOR.values_and_gradients(inputs, backend))


def test_position_based_attention_keeps_its_precision_under_autocast() -> None:
    arguments = OPERATOR.inputs({}, 'cpu', torch.float32)[3:]
    height, width = arguments[1].shape[1:]
    whole = 1e-5, slice(0, height), slice(0, width)
    with torch.autocast('cpu', torch.bfloat16):
        result = log_phi(*arguments, *whole)
        with portable_formulas():
            torch.testing.assert_close(log_phi(*arguments, *whole), result)
    assert result.dtype == torch.float32
