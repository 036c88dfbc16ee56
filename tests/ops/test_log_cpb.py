"""The table of the log-spaced position bias against its formula."""

import pytest
import torch

from bioattn_mm.ops import log_cpb, log_cpb_table
from tests.ops.conftest import needs_library


def make_arguments(
    rows: int = 5, columns: int = 37, hidden: int = 10, heads: int = 3, dtype: torch.dtype = torch.float64
) -> list[torch.Tensor]:
    shapes = ((rows, hidden), (columns, hidden), (heads, hidden), (heads,))
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def written_out(
    vertical: torch.Tensor, horizontal: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    hidden = (vertical[:, None] + horizontal[None]).clamp(min=0)
    return torch.einsum('rck,hk->hrc', hidden, weight) + bias[:, None, None]


@pytest.mark.parametrize(
    'sizes', [dict(), dict(rows=1, columns=1, hidden=1, heads=1), dict(columns=64, hidden=130, heads=9)], ids=str
)
def test_equals_the_formula(sizes: dict, backend: str) -> None:
    arguments = make_arguments(**sizes)
    torch.testing.assert_close(log_cpb_table(*arguments, backend=backend), written_out(*arguments))


def test_gradients(backend: str) -> None:
    inputs = [tensor.requires_grad_() for tensor in make_arguments()]
    assert torch.autograd.gradcheck(lambda *tensors: log_cpb_table(*tensors, backend=backend), inputs)


@needs_library
def test_float32_gradients_agree_over_many_hidden_units() -> None:
    gradients = []
    arguments = make_arguments(rows=40, columns=33, hidden=512, heads=12, dtype=torch.float32)
    for backend in ('reference', 'cpu'):
        inputs = [tensor.clone().requires_grad_() for tensor in arguments]
        log_cpb_table(*inputs, backend=backend).square().mean().backward()
        gradients.append([tensor.grad for tensor in inputs])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * one.abs().max().item())


def test_nan_propagates(backend: str) -> None:
    vertical, horizontal, weight, bias = make_arguments()
    vertical[2, 4] = float('nan')
    table = log_cpb_table(vertical, horizontal, weight, bias, backend=backend)
    assert table[:, 2].isnan().all()
    assert table.isnan().sum() == table[:, 2].numel()


def test_chunks_of_rows_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = make_arguments()
    monkeypatch.setattr(log_cpb, 'MAX_HIDDEN_PER_CHUNK', 2 * 37 * 10)  # two rows at a time
    torch.testing.assert_close(log_cpb_table(*arguments, backend='reference'), written_out(*arguments))


@needs_library
def test_operator_is_registered_as_torch_expects() -> None:
    inputs = [tensor.requires_grad_() for tensor in make_arguments(dtype=torch.float32)]
    torch.library.opcheck(torch.ops.bioattn_mm.log_cpb_table.default, inputs)
