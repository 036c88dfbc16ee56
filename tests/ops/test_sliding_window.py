"""The sliding window's operators against their formulas, written out query by query."""

import itertools
from collections.abc import Callable
from functools import partial

import pytest
import torch

from bioattn_mm.ops import sliding_window_av, sliding_window_qk
from bioattn_mm.ops.samples import OPERATORS
from tests.ops.conftest import Backend

# Both operators on a backend, and its device.
Operators = tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor], str]
QK = ('query', 'key', 'bias')
AV = ('weights', 'value')


@pytest.fixture
def operators(any_backend: Backend) -> Operators:
    name, device = any_backend
    return partial(sliding_window_qk, backend=name), partial(sliding_window_av, backend=name), device


def make_arguments(
    dtype: torch.dtype = torch.float64, device: str = 'cpu', **sizes: object
) -> dict[str, torch.Tensor]:
    inputs = (OPERATORS[f'sliding_window_{of}'].inputs(sizes, device, dtype) for of in ('qk', 'av'))
    return dict(zip(QK + AV, itertools.chain(*inputs)))


def select(arguments: dict[str, torch.Tensor], names: tuple[str, ...]) -> list[torch.Tensor]:
    return [arguments[name] for name in names]


def seen(height: int, width: int, window_size: int) -> list[tuple[int, int, int, int, int]]:
    """(i, j, offset, y, x) for every pair of a position and a token of its window that is inside the image."""
    pairs = []
    for i, j, u, v in itertools.product(*map(range, (height, width, window_size, window_size))):
        y, x = i + u - window_size // 2, j + v - window_size // 2
        if 0 <= y < height and 0 <= x < width:
            pairs.append((i, j, u * window_size + v, y, x))
    return pairs


def qk_written_out(query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    logits = query.new_full((*query.shape[:4], bias.shape[1]), float('-inf'))
    for i, j, offset, y, x in seen(*query.shape[1:3], round(bias.shape[1] ** 0.5)):
        logits[:, i, j, :, offset] = (query[:, i, j] * key[:, y, x]).sum(-1) + bias[:, offset]
    return logits


def av_written_out(weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
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


def gradients(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of a weighted sum of the output; logits of -inf have a weight too, and nothing must come of it."""
    inputs = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    output = function(*inputs)
    weights = torch.linspace(-1, 1, output.numel(), device=output.device).view_as(output)
    # The same numbers in every dtype.
    return list(torch.autograd.grad(output, inputs, weights.bfloat16().to(output.dtype)))


@pytest.mark.parametrize(
    ('sizes', 'dtype'),
    [
        *((sizes, torch.float64) for sizes in SIZES),
        *((dict(channels=24), dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32)),
    ],
    ids=str,
)
def test_values_and_gradients_equal_those_of_the_formula(
    sizes: dict, dtype: torch.dtype, operators: Operators
) -> None:
    """In half precision products are summed in float32: the only other rounding is that of the result itself."""
    qk, av, device = operators
    arguments = make_arguments(**sizes, dtype=dtype)
    inputs = {name: tensor.to(device) for name, tensor in arguments.items()}
    exact = {name: tensor.double() for name, tensor in arguments.items()}
    for names, function, formula in ((QK, qk, qk_written_out), (AV, av, av_written_out)):
        results = [function(*select(inputs, names)), *gradients(function, select(inputs, names))]
        wanted = [formula(*select(exact, names)), *gradients(formula, select(exact, names))]
        for name, one, other in zip(('output', *names), results, wanted, strict=True):
            torch.testing.assert_close(one.cpu(), other.to(dtype), msg=lambda m: f'{name}: {m}')  # noqa: B023


def test_weights_outside_the_image_do_nothing(operators: Operators) -> None:
    qk, av, device = operators
    arguments = make_arguments(device=device)
    weights, value = select(arguments, AV)
    outside = qk_written_out(*select(arguments, QK)).isinf()
    assert 0 < outside.sum() < outside.numel()
    changed = weights.masked_fill(outside, float('inf')).requires_grad_()
    output = av(changed, value)
    assert torch.equal(output, av(weights, value))
    (gradient,) = torch.autograd.grad(output.sum(), changed)
    assert torch.equal(gradient == 0, outside)


def test_nan_propagates_and_goes_no_further(operators: Operators) -> None:
    qk, av, device = operators
    arguments = make_arguments(device=device)
    arguments['query'][0, 2, 3, 1, 0] = float('nan')
    logits = qk(*select(arguments, QK))
    assert logits[0, 2, 3, 1].isnan().all()
    assert logits.isnan().sum() == 9
    arguments['weights'][1, 2, 3, 0, 4] = float('nan')
    output = av(*select(arguments, AV))
    assert output[1, 2, 3, 0].isnan().all()
    assert output.isnan().sum() == output.shape[-1]


def test_memory_layout_does_not_matter(operators: Operators) -> None:
    qk, av, device = operators
    arguments = make_arguments(device=device)
    for names, function in ((QK, qk), (AV, av)):
        inputs = select(arguments, names)
        strided = [tensor.transpose(0, -1).contiguous().transpose(0, -1) for tensor in inputs]
        assert not any(tensor.is_contiguous() for tensor in strided)
        torch.testing.assert_close(function(*strided), function(*inputs))
        torch.testing.assert_close(gradients(function, strided), gradients(function, inputs))
