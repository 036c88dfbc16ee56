"""The operator of TransNeXt's aggregated attention from the projections on, against aggregated attention."""

import pytest
import torch
from torch.nn import functional as F

from bioattn_mm.ops import aggregated_attention, cosine_attention, unit_vectors
from bioattn_mm.ops.samples import OPERATORS
from tests.ops.conftest import Place, check_any_number_of_threads, needs_library
from tests.ops.kernels import check, cosine_attention_inputs


def test_is_aggregated_attention_of_scaled_unit_vectors(backend: str) -> None:
    inputs = cosine_attention_inputs(grid=(3, 5), pooled_grid=(2, 2))
    output = cosine_attention(*inputs, backend=backend)
    unit_query = F.normalize(inputs.query, dim=-1)
    rows, columns = torch.tensor([2, 3, 2]), torch.tensor([2, 3, 3, 3, 2])  # of the window inside of the grid
    number_of_keys = (rows[:, None] * columns + 4.0)[:, :, None, None]
    want = aggregated_attention(
        query=(unit_query + inputs.query_embedding) * inputs.scale[:, None] * number_of_keys.double().log(),
        key=F.normalize(inputs.key_value[:, :, :, 0], dim=-1),
        value=inputs.key_value[:, :, :, 1],
        pooled_key=F.normalize(inputs.pooled_key_value[:, :, :, 0], dim=-1),
        pooled_value=inputs.pooled_key_value[:, :, :, 1],
        window_bias=inputs.window_bias,
        pooled_bias=inputs.pooled_bias[:, :, inputs.pooled_bias_columns],
        pooled_bias_rows=inputs.pooled_bias_rows,
        token_weights=torch.einsum('bhwnd,ndk->bhwnk', unit_query, inputs.tokens) + inputs.token_bias,
        backend='reference',
    )
    torch.testing.assert_close(output, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_unit_vectors(dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, 5, dtype=dtype)
    x[0, 1] = 0
    if dtype != torch.float16:
        x[1, 2] *= 1e-8  # shorter than the smallest norm
    x.requires_grad_()
    full, grad = x.detach().to(torch.promote_types(dtype, torch.float32)).requires_grad_(), torch.randn_like(x)
    want = F.normalize(full, dim=-1, eps=1e-6)
    assert torch.equal(unit_vectors(x), want.to(dtype))
    assert torch.equal(unit_vectors(x.detach()), want.to(dtype))
    (got,) = torch.autograd.grad(unit_vectors(x), x, grad)
    torch.testing.assert_close(got, torch.autograd.grad(want, full, grad.to(full.dtype))[0].to(dtype))


def test_gradients_of_unit_vectors() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(unit_vectors, x)
    assert torch.autograd.gradgradcheck(unit_vectors, x)


@needs_library
def test_heads_are_apart() -> None:
    """Threads with neighbouring heads add to neighbouring gradients of the position bias, a vector at a time."""
    inputs = cosine_attention_inputs(batch=3000, grid=(1, 1), pooled_grid=(1, 1), dtype=torch.float32)
    inputs = inputs._replace(pooled_bias=inputs.pooled_bias[:, :1, :1], pooled_bias_rows=torch.zeros(1, 1, dtype=int))
    inputs = inputs._replace(pooled_bias_columns=torch.zeros(1, 1, dtype=int))
    check_any_number_of_threads(lambda: OPERATORS['cosine_attention'].values_and_gradients(inputs, 'cpu'))


def test_zeros_stay_zeros(place: Place) -> None:
    """Below the smallest norm, a vector is multiplied by a constant."""
    dtype, tolerance = (torch.float32, 4e-5) if place.backend == 'cuda' else (torch.float64, 1e-10)
    inputs = cosine_attention_inputs(dtype=dtype)
    inputs.query[0, 2, 3] = 0
    inputs.key_value[0, 1, 4] *= 1e-9
    inputs.pooled_key_value[1, 1, 1] = 0
    check('cosine_attention', inputs, place, tolerance)
