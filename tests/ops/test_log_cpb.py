"""The table of the log-spaced position bias against its formula."""

import pytest
import torch
from torch import Tensor

from bioattn_mm.ops import log_cpb_table
from tests.ops.conftest import Place
from tests.ops.kernels import check, inputs_of


def make_inputs(dtype: torch.dtype = torch.float64, **sizes: int) -> list[Tensor]:
    return inputs_of('log_cpb_table', dtype, **dict(rows=5, columns=37, hidden=10) | sizes)


def written_out(vertical: Tensor, horizontal: Tensor, *layers: Tensor, backend: None = None) -> Tensor:
    hidden_weight, hidden_bias, weight, bias = layers
    if weight.dim() == 3:
        return torch.stack([written_out(vertical, horizontal, *mlp) for mlp in zip(*layers)])
    pairs = torch.cartesian_prod(vertical, horizontal).view(len(vertical), len(horizontal), 2)
    hidden = (pairs @ hidden_weight.T + hidden_bias).clamp(min=0)
    return torch.einsum('rck,hk->hrc', hidden, weight) + bias[:, None, None]


@pytest.mark.parametrize(
    'sizes',
    [
        dict(),
        dict(rows=1, columns=1, hidden=1, heads=1),
        dict(columns=64, hidden=130, heads=9),
        dict(rows=70, columns=3, hidden=33, heads=4),  # more rows than columns
        dict(rows=9, hidden=33, heads=5, mlps=3),
        *(dict.fromkeys([empty], 0) for empty in ('rows', 'columns', 'hidden', 'heads')),
        dict(rows=40, columns=33, hidden=512, heads=12, dtype=torch.float32),
    ],
    ids=str,
)
def test_equals_the_formula(sizes: dict, place: Place) -> None:
    inputs = make_inputs(**sizes)
    tolerance = 2e-6 if inputs[0].dtype == torch.float32 else None
    check('log_cpb_table', inputs, place, tolerance, written_out)


def test_coordinates_in_any_order(place: Place) -> None:
    """Also repeated ones, and units that are active in all columns, in none, or in some at either end."""
    inputs = make_inputs(columns=40, hidden=12, heads=20)
    inputs[1] = inputs[1][torch.arange(40) * 17 % 40].round(decimals=1)
    hidden_weight, hidden_bias = inputs[2:4]
    hidden_weight[:4, 1] = 0
    hidden_bias[:2], hidden_bias[2:4] = 9, -9
    check('log_cpb_table', inputs, place, formula=written_out)


def test_nan_propagates(place: Place) -> None:
    def isnan(number: int, index: object) -> Tensor:
        inputs = make_inputs()
        inputs[number][index] = float('nan')
        return log_cpb_table(*(tensor.to(place.device) for tensor in inputs), backend=place.backend).isnan()

    found = isnan(0, 2)
    assert found[:, 2].all() and found.sum() == found[:, 2].numel()
    assert isnan(4, (1, 3)).any((1, 2)).tolist() == [False, True, False]
