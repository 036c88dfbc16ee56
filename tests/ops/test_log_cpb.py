"""The table of the log-spaced position bias against its formula."""

from collections.abc import Callable

import pytest
import torch

from bioattn_mm.ops import log_cpb_table
from bioattn_mm.ops.samples import make_log_cpb_table
from tests.ops.conftest import Backend

Operator = Callable[..., torch.Tensor]


@pytest.fixture
def operator(any_backend: Backend) -> Operator:
    """Every backend, as a function of tensors on the CPU."""
    name, device = any_backend
    return lambda *tensors: log_cpb_table(*(tensor.to(device) for tensor in tensors), backend=name).cpu()


def make_arguments(dtype: torch.dtype = torch.float64, **sizes: int) -> list[torch.Tensor]:
    return [tensor.to(dtype) for tensor in make_log_cpb_table(**dict(rows=5, columns=37, hidden=10) | sizes)]


def written_out(
    vertical: torch.Tensor,
    horizontal: torch.Tensor,
    hidden_weight: torch.Tensor,
    hidden_bias: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    if weight.dim() == 3:
        mlps = zip(hidden_weight, hidden_bias, weight, bias)
        return torch.stack([written_out(vertical, horizontal, *layers) for layers in mlps])
    pairs = torch.cartesian_prod(vertical, horizontal).view(len(vertical), len(horizontal), 2)
    hidden = (pairs @ hidden_weight.T + hidden_bias).clamp(min=0)
    return torch.einsum('rck,hk->hrc', hidden, weight) + bias[:, None, None]


def values_and_gradients(operator: Operator, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    parameters = [tensor.detach().requires_grad_() for tensor in arguments[2:]]
    table = operator(*arguments[:2], *parameters)
    weights = torch.linspace(-1, 1, table.numel(), dtype=table.dtype).view_as(table)
    return [table.detach(), *torch.autograd.grad(table, parameters, weights)]


SIZES = [
    dict(),
    dict(rows=1, columns=1, hidden=1, heads=1),
    dict(columns=64, hidden=130, heads=9),
    dict(rows=70, columns=3, hidden=33, heads=4),  # more rows than columns
    dict(rows=9, hidden=33, heads=5, mlps=3),
    *(dict.fromkeys([empty], 0) for empty in ('rows', 'columns', 'hidden', 'heads')),
]


@pytest.mark.parametrize('sizes', SIZES, ids=str)
def test_equals_the_formula(sizes: dict, operator: Operator) -> None:
    arguments = make_arguments(**sizes)
    wanted = values_and_gradients(written_out, arguments)
    torch.testing.assert_close(values_and_gradients(operator, arguments), wanted)


def test_coordinates_in_any_order(operator: Operator) -> None:
    """Also repeated ones, and units that are active in all columns, in none, or in some at either end."""
    arguments = make_arguments(columns=40, hidden=12, heads=20)
    arguments[1] = arguments[1][torch.arange(40) * 17 % 40].round(decimals=1)
    hidden_weight, hidden_bias = arguments[2:4]
    hidden_weight[:4, 1] = 0
    hidden_bias[:2], hidden_bias[2:4] = 9, -9
    wanted = values_and_gradients(written_out, arguments)
    torch.testing.assert_close(values_and_gradients(operator, arguments), wanted)


def test_float32_agrees_over_many_hidden_units(operator: Operator) -> None:
    arguments = make_arguments(rows=40, columns=33, hidden=512, heads=12, dtype=torch.float32)
    wanted = values_and_gradients(written_out, [tensor.double() for tensor in arguments])
    for result, want in zip(values_and_gradients(operator, arguments), wanted, strict=True):
        assert result.dtype == torch.float32
        torch.testing.assert_close(result.double(), want, rtol=0, atol=2e-6 * want.abs().max().item())


def test_nan_propagates(operator: Operator) -> None:
    arguments = make_arguments()
    arguments[0][2] = float('nan')
    table = operator(*arguments)
    assert table[:, 2].isnan().all()
    assert table.isnan().sum() == table[:, 2].numel()
    arguments = make_arguments()
    arguments[4][1, 3] = float('nan')
    assert operator(*arguments).isnan().any((1, 2)).tolist() == [False, True, False]


def test_memory_layout_does_not_matter(operator: Operator) -> None:
    arguments = make_arguments(hidden=9)
    strided = [torch.stack((tensor, tensor), -1)[..., 0] for tensor in arguments]
    assert not any(tensor.is_contiguous() for tensor in strided)
    shifted = [torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape) for tensor in arguments]
    wanted = values_and_gradients(operator, arguments)
    torch.testing.assert_close(values_and_gradients(operator, strided), wanted)
    torch.testing.assert_close(values_and_gradients(operator, shifted), wanted)
