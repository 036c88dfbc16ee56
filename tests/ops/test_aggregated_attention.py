"""Aggregated attention against its formula, written out query by query."""

import re
import subprocess
import sys

import pytest
import torch

from bioattn_mm.ops import aggregated_attention, reference
from bioattn_mm.ops.arguments import AggregatedAttentionInputs
from bioattn_mm.ops.backends import choose_backend
from tests.ops.conftest import (
    check_any_number_of_threads,
    check_compiles_and_exports,
    check_storage,
    needs_library,
)

FLOATING = [name for name in AggregatedAttentionInputs._fields if name != 'pooled_bias_rows']


def make_arguments(
    batch: int = 2,
    grid: tuple[int, int] = (5, 7),
    pooled_grid: tuple[int, int] = (2, 3),
    heads: int = 2,
    channels: int = 8,
    window_size: int = 3,
    rows: int = 4,
    dtype: torch.dtype = torch.float64,
) -> dict[str, torch.Tensor]:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype)

    height, width = grid
    pooled_height, pooled_width = pooled_grid
    return dict(
        query=random(batch, height, width, heads, channels),
        key=random(batch, height, width, heads, channels),
        value=random(batch, height, width, heads, channels),
        pooled_key=random(batch, pooled_height, pooled_width, heads, channels),
        pooled_value=random(batch, pooled_height, pooled_width, heads, channels),
        window_bias=random(heads, window_size**2),
        pooled_bias=random(heads, rows, width, pooled_width),
        pooled_bias_rows=torch.randint(rows, (height, pooled_height)),
        token_weights=random(batch, height, width, heads, window_size**2),
    )


def written_out(arguments: dict[str, torch.Tensor]) -> torch.Tensor:
    """Equations 10 to 14 of the paper for one query at a time."""
    x = AggregatedAttentionInputs(**arguments)
    batch, height, width, heads, _ = x.query.shape
    window_size = round(x.window_bias.shape[1] ** 0.5)
    output = torch.zeros_like(x.query)
    for b, i, j, h in torch.cartesian_prod(*(torch.arange(n) for n in (batch, height, width, heads))).tolist():
        query = x.query[b, i, j, h]
        logits, values, extra = [], [], []
        for offset in range(window_size**2):
            row, column = i + offset // window_size - window_size // 2, j + offset % window_size - window_size // 2
            if 0 <= row < height and 0 <= column < width:
                logits.append(query @ x.key[b, row, column, h] + x.window_bias[h, offset])
                values.append(x.value[b, row, column, h])
                extra.append(x.token_weights[b, i, j, h, offset])
        for u in range(x.pooled_key.shape[1]):
            for v in range(x.pooled_key.shape[2]):
                bias = x.pooled_bias[h, x.pooled_bias_rows[i, u], j, v]
                logits.append(query @ x.pooled_key[b, u, v, h] + bias)
                values.append(x.pooled_value[b, u, v, h])
                extra.append(torch.zeros((), dtype=query.dtype))
        weights = torch.stack(logits).softmax(0) + torch.stack(extra)
        output[b, i, j, h] = weights @ torch.stack(values)
    return output


@pytest.mark.parametrize(
    'sizes',
    [
        dict(),
        dict(window_size=5),
        dict(window_size=7, grid=(3, 4)),
        dict(grid=(1, 1), pooled_grid=(1, 1)),
        dict(grid=(2, 9), pooled_grid=(7, 7), heads=1),
    ],
    ids=str,
)
def test_equals_the_formula(sizes: dict, backend: str) -> None:
    arguments = make_arguments(**sizes)
    output = aggregated_attention(**arguments, backend=backend)
    torch.testing.assert_close(output, written_out(arguments), rtol=1e-10, atol=1e-10)


@needs_library
@pytest.mark.parametrize(
    'sizes',
    [
        dict(grid=(37, 70), pooled_grid=(4, 9), channels=24),  # several tiles in rows and columns, none whole
        dict(grid=(9, 65), pooled_grid=(33, 40), channels=8),  # more pooled keys than queries
        dict(grid=(20, 11), window_size=9, channels=64, heads=3),
        dict(batch=0),
    ],
    ids=str,
)
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_backends_agree_in_values_and_gradients(sizes: dict, dtype: torch.dtype) -> None:
    arguments = make_arguments(**sizes, dtype=dtype)
    results = {}
    for backend in ('reference', 'cpu'):
        inputs = {
            name: tensor.clone().requires_grad_(tensor.is_floating_point()) for name, tensor in arguments.items()
        }
        output = aggregated_attention(**inputs, backend=backend)
        weights = torch.linspace(-1, 1, output.numel(), dtype=dtype).view_as(output)
        (output * weights).sum().backward()
        gradients = {name: tensor.grad for name, tensor in inputs.items() if tensor.requires_grad}
        results[backend] = dict(output=output, **gradients)
    for name, want in results['reference'].items():
        tolerance = (1e-9 if dtype == torch.float64 else 1e-4) * want.abs().max().item() if want.numel() else 0
        torch.testing.assert_close(results['cpu'][name], want, rtol=0, atol=tolerance, msg=lambda m: f'{name}: {m}')  # noqa: B023


@needs_library
def test_backward_is_the_same_for_any_number_of_threads() -> None:
    arguments = make_arguments(grid=(40, 70), channels=24, dtype=torch.float32)

    def run() -> list[torch.Tensor]:
        inputs = {name: t.clone().requires_grad_(t.is_floating_point()) for name, t in arguments.items()}
        aggregated_attention(**inputs, backend='cpu').square().sum().backward()
        return [t.grad for t in inputs.values() if t.requires_grad]

    check_any_number_of_threads(run)


@needs_library
def test_operator_is_registered_as_torch_expects() -> None:
    arguments = make_arguments(batch=1, dtype=torch.float32)
    inputs = [t.requires_grad_(t.is_floating_point()) for t in arguments.values()]
    # Schema, autograd registration, fake tensors, and AOT dispatch with dynamic shapes.
    torch.library.opcheck(torch.ops.bioattn_mm.aggregated_attention.default, (*inputs, True))


@needs_library
def test_compiles_into_one_graph_and_exports() -> None:
    check_compiles_and_exports(aggregated_attention, make_arguments(dtype=torch.float32))


@needs_library
def test_no_second_derivative() -> None:
    arguments = make_arguments(batch=1)
    query = arguments['query'].requires_grad_()
    (gradient,) = torch.autograd.grad(aggregated_attention(**arguments).square().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match='aggregated_attention_backward'):
        gradient.sum().backward()


def test_nan_propagates_and_goes_no_further(backend: str) -> None:
    arguments = make_arguments(batch=2, dtype=torch.float32)
    arguments['query'][0, 2, 3, 1, 0] = float('nan')
    output = aggregated_attention(**arguments, backend=backend)
    assert output[0, 2, 3, 1].isnan().all()
    assert output.isnan().sum() == output.shape[-1]


@pytest.mark.parametrize('row', [-1, 4])
def test_rows_outside_of_the_bias(row: int, backend: str) -> None:
    arguments = make_arguments()
    arguments['pooled_bias_rows'][3, 1] = row
    # PyTorch's index_select raises a RuntimeError, the compiled operator an IndexError.
    with pytest.raises((IndexError, RuntimeError), match='out of DATA bounds|pooled_bias_rows must be 0 to 3'):
        aggregated_attention(**arguments, backend=backend)


def test_non_contiguous_arguments(backend: str) -> None:
    arguments = make_arguments()
    want = aggregated_attention(**arguments, backend=backend)
    strided = {name: t.transpose(0, -1).contiguous().transpose(0, -1) for name, t in arguments.items()}
    assert not strided['key'].is_contiguous()
    torch.testing.assert_close(aggregated_attention(**strided, backend=backend), want)


def test_backend_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('BIOATTN_MM_BACKEND', 'reference')
    assert choose_backend(torch.device('cpu'), None) == 'reference'
    monkeypatch.setenv('BIOATTN_MM_BACKEND', 'abacus')
    with pytest.raises(ValueError, match="no backend 'abacus' for cpu: expected one of .*reference"):
        aggregated_attention(**make_arguments())


def test_report_of_what_was_built() -> None:
    process = subprocess.run([sys.executable, '-m', 'bioattn_mm.ops'], capture_output=True, text=True, check=True)
    assert 'compiled operators: ' in process.stdout
    assert re.search(r'^cpu: .*reference', process.stdout, re.MULTILINE)


def test_queries_in_chunks_of_rows_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = make_arguments(grid=(9, 6))
    whole = aggregated_attention(**arguments, backend='reference')
    monkeypatch.setattr(reference, 'MAX_WEIGHTS_PER_CHUNK', 2 * 2 * 6 * (9 + 6) * 2)  # two rows at a time
    calls = []
    attend = reference._attend
    monkeypatch.setattr(reference, '_attend', lambda *args: calls.append(1) or attend(*args))
    with torch.no_grad():
        torch.testing.assert_close(aggregated_attention(**arguments, backend='reference'), whole)
    assert len(calls) == 5


def test_gradients(backend: str) -> None:
    arguments = make_arguments(batch=1, grid=(3, 4), pooled_grid=(1, 2), channels=3)

    def function(*tensors: torch.Tensor) -> torch.Tensor:
        return aggregated_attention(**{**arguments, **dict(zip(FLOATING, tensors))}, backend=backend)

    assert torch.autograd.gradcheck(function, [arguments[name].requires_grad_() for name in FLOATING])


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_sums_in_float32(dtype: torch.dtype, backend: str) -> None:
    arguments = make_arguments(dtype=torch.float32, channels=24)
    half = {name: t.to(dtype) if t.is_floating_point() else t for name, t in arguments.items()}
    exact = aggregated_attention(**{name: t.double() if t.is_floating_point() else t for name, t in half.items()})
    output = aggregated_attention(**half, backend=backend)
    assert output.dtype == dtype
    check_storage(output, exact, backend)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_autocast_takes_mixed_dtypes(dtype: torch.dtype, backend: str) -> None:
    arguments = make_arguments(dtype=torch.float32)
    arguments['value'] = arguments['value'].to(dtype)
    inputs = {name: t.requires_grad_(t.is_floating_point()) for name, t in arguments.items()}
    with torch.autocast('cpu', dtype):
        output = aggregated_attention(**inputs, backend=backend)
    assert output.dtype == dtype
    half = {name: t.detach().to(dtype) if t.is_floating_point() else t for name, t in arguments.items()}
    torch.testing.assert_close(output, aggregated_attention(**half, backend=backend))
    output.float().sum().backward()
    assert all(t.grad.dtype == t.dtype for t in inputs.values() if t.requires_grad)


def test_autocast_leaves_float64_alone(backend: str) -> None:
    arguments = make_arguments()
    want = aggregated_attention(**arguments, backend=backend)
    with torch.autocast('cpu', torch.bfloat16):
        output = aggregated_attention(**arguments, backend=backend)
    assert output.dtype == torch.float64
    assert torch.equal(output, want)


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('key', 'key must be torch.float64 to fit query, got torch.float32'),
        ('query', 'key must be torch.float32 to fit query, got torch.float64'),
        ('pooled_bias_rows', 'pooled_bias_rows must be torch.int64 to fit query, got torch.float32'),
    ],
)
def test_what_autocast_does_not_cast(name: str, message: str, backend: str) -> None:
    arguments = make_arguments()
    arguments[name] = arguments[name].float()
    with torch.autocast('cpu', torch.bfloat16), pytest.raises(ValueError, match=message):
        aggregated_attention(**arguments, backend=backend)


def test_empty_batch(backend: str) -> None:
    assert aggregated_attention(**make_arguments(batch=0), backend=backend).shape == (0, 5, 7, 2, 8)


def test_large_logits_stay_finite(backend: str) -> None:
    arguments = make_arguments(dtype=torch.float32)
    arguments['query'] *= 1e4
    assert aggregated_attention(**arguments, backend=backend).isfinite().all()


@pytest.mark.parametrize(
    ('name', 'wrong', 'message'),
    [
        ('query', torch.zeros(2, 5, 7, 8), r'query must be \(B, H, W, heads, d\), got shape \(2, 5, 7, 8\)'),
        ('query', torch.zeros(2, 5, 7, 2, 8).int(), 'query must be one of float16, bfloat16, .*, got int32'),
        ('key', torch.zeros(2, 5, 6, 2, 8), r'key must have shape \(2, 5, 7, 2, 8\).*got \(2, 5, 6, 2, 8\)'),
        ('window_bias', torch.zeros(2, 16), r'window_bias.*16 is not the square of an odd number'),
        ('pooled_key', torch.zeros(2, 6, 2, 8), r'pooled_key must be \(B, Ph, Pw, heads, d\)'),
        ('pooled_bias', torch.zeros(2, 4, 7, 2), r'pooled_bias must have shape \(2, 4, 7, 3\)'),
        (
            'pooled_bias_rows',
            torch.zeros(5, 3, dtype=torch.long),
            r'pooled_bias_rows must have shape \(5, 2\)',
        ),
        ('token_weights', torch.zeros(2, 5, 7, 2, 25), r'token_weights must have shape \(2, 5, 7, 2, 9\)'),
        ('value', torch.zeros(2, 5, 7, 2, 8, device='meta'), 'value is on meta, but query is on cpu'),
        ('key', torch.zeros(2, 5, 7, 2, 8).half(), 'key must be torch.float64 to fit query, got torch.float16'),
        ('pooled_bias_rows', torch.zeros(5, 2, dtype=torch.int32), 'pooled_bias_rows must be torch.int64'),
    ],
)
def test_arguments_that_do_not_fit(name: str, wrong: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        aggregated_attention(**{**make_arguments(), name: wrong})
