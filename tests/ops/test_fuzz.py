"""Every operator with random arguments, right and wrong ones: it gives the formula's result, or raises an exception.

BIOATTN_MM_FUZZ_CASES is the number of cases of each operator, BIOATTN_MM_FUZZ_SEED the first of their seeds: hours of
other cases than the few of the test suite, or one that failed. `make test-asan` runs them where reads and writes
outside of a tensor's memory end the process.
"""

import inspect
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch import Tensor

from bioattn_mm.ops.arguments import DTYPES
from bioattn_mm.ops.check import GRADIENT_FACTOR, SMALLEST_SCALE, TOLERANCE, relative_error
from bioattn_mm.ops.samples import OPERATORS, Operator
from tests.ops.blocks import OF_BLOCKS
from tests.ops.conftest import CAPABILITIES, IN_USE, Calls, capability, needs_library
from tests.ops.kernels import shifted, sliced, to_double, transposed, with_odd_strides

NAMES = [name for name in OPERATORS if 'cpu' in OPERATORS[name].dtypes]
CASES = int(os.environ.get('BIOATTN_MM_FUZZ_CASES', 80))
FIRST_SEED = int(os.environ.get('BIOATTN_MM_FUZZ_SEED', 0))

LENGTHS = (1, 1, 2, 3, 5, 9, 17)
# What sizes are drawn from, by the arguments that make an operator's tensors.
SIZES = dict(
    batch=(0, 1, 1, 2),
    heads=(1, 2, 3, 5),
    channels=(1, 3, 8, 16, 16, 17, 24, 32),
    window_size=(1, 3, 3, 5),
    height=LENGTHS,
    width=LENGTHS,
    rows=(0, *LENGTHS),
    columns=(0, *LENGTHS),
    hidden=(1, 7, 16, 70),
    mlps=(None, None, 1, 3),
    grid=LENGTHS,
    pooled_grid=(0, 1, 1, 2, 3),
    shapes=([(1, 1)], [(5, 3)], [(9, 7), (4, 4)], [(1, 17), (2, 2), (3, 1)]),
    queries=LENGTHS,
    states=(1, 1, 2, 10),
    points=(1, 2, 4),
)
# Arguments beside the tensors.
OTHERS: dict[str, Callable[[random.Random, list[Tensor]], dict]] = {
    'gated_convolution': lambda draw, inputs: dict(
        x_bias=draw.choice([None, torch.randn(inputs[0].shape[-1], dtype=inputs[1].dtype)])
    ),
    'gelu_pool': lambda draw, inputs: dict(grid=(draw.choice((*LENGTHS, 0, -2)), draw.choice(LENGTHS))),
    'peripheral_attention': lambda draw, inputs: dict(eps=draw.choice((1e-5, 1e-2))),
    'relative_bias_attention': lambda draw, inputs: dict(scale=draw.choice((None, 0.5, 0.0))),
}


def draw_sizes(draw: random.Random, operator: Operator) -> dict[str, object]:
    def length(name: str) -> int:
        return draw.choice(SIZES[name]) if name == 'shapes' or draw.random() >= 0.03 else 0

    names = [name for name in inspect.signature(operator.make).parameters if name in SIZES]
    return {name: (length(name), length(name)) if 'grid' in name else length(name) for name in names}


def expanded(draw: random.Random, tensor: Tensor) -> Tensor:
    if not tensor.numel() or not tensor.dim():
        return tensor
    return tensor.narrow(draw.randrange(tensor.dim()), 0, 1).expand_as(tensor)


def with_one(draw: random.Random, tensor: Tensor, *values: float) -> Tensor:
    tensor = tensor.clone(memory_format=torch.contiguous_format)
    tensor.view(-1)[draw.randrange(tensor.numel())] = draw.choice(values)
    return tensor


def with_a_special(draw: random.Random, tensor: Tensor) -> Tensor:
    if not tensor.numel() or not tensor.is_floating_point():
        return tensor
    return with_one(draw, tensor, float('nan'), float('inf'), -float('inf'))


def of_another_shape(draw: random.Random, tensor: Tensor) -> Tensor:
    if not tensor.dim():
        return tensor[None]
    axis = draw.randrange(tensor.dim())
    size = tensor.shape[axis]
    return draw.choice(
        (
            tensor.unsqueeze(axis),
            tensor.flatten(),
            tensor.sum(axis).to(tensor.dtype),
            *(tensor.narrow(axis, 0, length) for length in (0, min(1, size), max(0, size - 1))),
            torch.cat([tensor, tensor], axis),
            tensor.transpose(axis, -1),
            tensor.flatten()[:1].view(()) if tensor.numel() else tensor[None],
        )
    )


def out_of_range(draw: random.Random, tensor: Tensor) -> Tensor:
    """Indices of rows or columns that are not there."""
    if tensor.is_floating_point() or not tensor.numel():
        return of_another_shape(draw, tensor)
    return with_one(draw, tensor, -1, 10**6, 2**62, -(2**62))


# The same numbers elsewhere in memory.
LAYOUTS = (transposed, sliced, shifted, with_odd_strides)
# Other numbers, that are as right: elements that share memory, as those of windows do, among them.
RIGHT = (
    *(*LAYOUTS, expanded, with_a_special, lambda draw, tensor: torch.zeros_like(tensor)),
    lambda draw, tensor: tensor.contiguous().as_strided(tensor.shape, (1,) * tensor.dim()),
)
OTHER_DTYPES = (*DTYPES, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64)
# These changes do not fit the other tensors. An exception for one tensor must not hide what another does.
WRONG = (
    *(of_another_shape, of_another_shape, out_of_range, *RIGHT),
    lambda draw, tensor: tensor.to(draw.choice([dtype for dtype in OTHER_DTYPES if dtype != tensor.dtype])),
    lambda draw, tensor: tensor.to('meta'),
    lambda draw, tensor: tensor.to_sparse(),
    lambda draw, tensor: None,
)


def alter(draw: random.Random, inputs: Sequence, alterations: Sequence[Callable]) -> list:
    """`inputs`, with some of the tensors altered."""
    inputs = list(inputs)
    tensors = [place for place, value in enumerate(inputs) if isinstance(value, Tensor)]
    for place in draw.sample(tensors, min(len(tensors), draw.choice((0, 1, 1, 1, 2, 3)))):
        inputs[place] = draw.choice(alterations)(draw, inputs[place])
    return inputs


def run(function: Callable[[], list[Tensor]]) -> list[Tensor] | Exception:
    """What a function returns, or the exception that it raises, which must be one for users."""
    try:
        return function()
    except Exception as error:
        assert not isinstance(error, (SystemError, AssertionError, ZeroDivisionError)), repr(error)
        assert str(error) and 'INTERNAL ASSERT' not in str(error), repr(error)
        assert not isinstance(error, ValueError) or '\n' not in str(error), str(error)
        return error


@dataclass
class Case:
    """A call of an operator, and of its backward pass."""

    operator: Operator
    inputs: Sequence  # tensors, or what is given instead
    others: dict
    frozen: Sequence[int] = ()  # places of tensors that need no gradient
    layout: Callable | None = shifted  # of the gradient of the output; None for no backward pass
    autocast: torch.dtype | None = None

    def values_and_gradients(self, backend: str | None) -> list[Tensor]:
        inputs = [t.detach() if isinstance(t, Tensor) else t for t in self.inputs]
        constants = {*self.frozen, *self.operator.constants}
        candidates = [t for place, t in enumerate(inputs) if place not in constants and isinstance(t, Tensor)]
        leaves = [t.requires_grad_() for t in candidates if t.is_floating_point()]
        with torch.autocast('cpu', self.autocast, enabled=self.autocast is not None):
            output = self.operator.run(*inputs, **self.others, backend=backend)
        if not leaves or self.layout is None:
            return [output.detach()]
        gradient = torch.linspace(-1, 1, output.numel(), device=output.device).view(output.shape)
        gradient = self.layout(random.Random(0), gradient.bfloat16().to(output.dtype))
        return [output.detach(), *torch.autograd.grad(output, leaves, gradient)]

    def exact(self) -> list[Tensor]:
        """The formula's in float64."""
        inputs, others = ([to_double(t) for t in values] for values in (self.inputs, self.others.values()))
        exact = replace(self, inputs=inputs, others=dict(zip(self.others, others)), autocast=None)
        return exact.values_and_gradients('reference')


def check_alike(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    """Results have the same shapes, dtypes and devices."""
    alike, wanted_alike = ([(t.shape, t.dtype, t.device) for t in results] for results in (got, wanted))
    assert alike == wanted_alike


def check_equal(got: Sequence[Tensor], wanted: Sequence[Tensor], tolerance: float, numel: int) -> None:
    """Results are the same to rounding, and infinite or NaN in the same places."""
    for number, (one, other) in enumerate(zip(got, wanted, strict=True)):
        other = other.to(one.dtype)  # in which large ones are infinite
        assert torch.equal(one.isfinite(), other.isfinite()), f'result {number} is not finite elsewhere'
        # As in `check.compare`: gradients of parameters are sums over the tokens.
        scale = SMALLEST_SCALE * max(numel / max(other.numel(), 1), 1) ** 0.5
        error = relative_error(one.nan_to_num(0, 0, 0), other.double().nan_to_num(0, 0, 0), scale)
        allowed = (GRADIENT_FACTOR if number else 1) * tolerance
        assert error <= allowed, f'result {number} differs by {error}, more than {allowed}'


def seeds(name: str) -> Iterator[random.Random]:
    for seed in range(FIRST_SEED, FIRST_SEED + CASES):
        print(f'{name}, seed {seed}', flush=True)  # the last one is shown with a failure
        torch.manual_seed(seed)
        yield random.Random(f'{name} {seed}')


def draw_inputs(draw: random.Random, operator: Operator) -> list[Tensor]:
    while True:
        try:
            return operator.inputs(draw_sizes(draw, operator), 'cpu', draw.choice(operator.dtypes['cpu']))
        except RuntimeError as error:  # no tokens have no table of the offsets between them
            assert 'negative dimension' in str(error)


@needs_library
@pytest.mark.parametrize('wrong', [False, True], ids=['right', 'wrong'])
@pytest.mark.parametrize('name', NAMES)
def test_the_formula_or_an_exception(name: str, wrong: bool) -> None:
    operator = OPERATORS[name]
    results = 0
    for draw in seeds(f'{name}, {"wrong" if wrong else "right"}'):
        inputs = draw_inputs(draw, operator)
        others = OTHERS.get(name, lambda *_: {})(draw, inputs)
        case = Case(
            operator,
            alter(draw, inputs, WRONG if wrong else RIGHT),
            others,
            frozen=[place for place in range(len(inputs)) if draw.random() < 0.2],
            layout=draw.choice((None, *LAYOUTS, expanded)),
            autocast=draw.choice((None, None, None, torch.bfloat16, torch.float16)),
        )
        backend = draw.choice(('cpu', 'cpu', None))
        with capability(draw.choice((IN_USE, draw.choice(CAPABILITIES)))):
            got, wanted = (run(partial(case.values_and_gradients, name)) for name in (backend, 'reference'))
        if isinstance(got, Exception):
            # Compiled operators take less, but where nobody asks for one, another runs.
            assert backend == 'cpu' or isinstance(wanted, Exception), repr(got)
            continue
        assert not isinstance(wanted, Exception), repr(wanted)
        results += 1
        check_alike(got, wanted)
        tensors = [t for t in (*got, *case.inputs) if isinstance(t, Tensor)]
        # Zero times infinity is NaN, or is left out, and so is a softmax over nothing but -inf: the tests of the
        # operators say where.
        if any(t.is_meta for t in got) or not all(t.isfinite().all() for t in tensors[len(got) :] if not t.is_meta):
            continue
        dtypes = {case.autocast, *(t.dtype for t in tensors)} & set(TOLERANCE)
        tolerance = 2 * max((TOLERANCE[dtype] for dtype in dtypes), default=0)
        numel = max(t.numel() for t in tensors)
        # What runs in PyTorch is as exact as PyTorch is.
        if not all(torch.equal(one, other) for one, other in zip(got, wanted)):
            check_equal(got, case.exact(), tolerance, numel)
    assert results > CASES / 20 or CASES < 20  # else nothing was compared


def call(function: Callable, arguments: Sequence) -> list[Tensor]:
    """An operator's results, without the rounding of a forward pass of attention, which is written on CUDA alone."""
    results = function(*(t.detach() if isinstance(t, Tensor) else t for t in arguments))
    results = [results] if isinstance(results, Tensor) else list(results)
    number = dict(aggregate=9, after_attention=10).get(function._schema.name.removeprefix('bioattn_mm::'))
    return results[: number or 2] if number or str(function).endswith('attention.default') else results


@needs_library
@pytest.mark.parametrize('name', [*NAMES, *OF_BLOCKS])
def test_what_operators_call_checks_its_arguments_itself(name: str) -> None:
    operator = (OPERATORS | OF_BLOCKS)[name]
    raised, called = 0, set()
    for draw in seeds(name):
        inputs = draw_inputs(draw, operator)
        case = Case(operator, inputs, OTHERS.get(name, lambda *_: {})(draw, inputs))
        with capability(draw.choice((IN_USE, draw.choice(CAPABILITIES)))), Calls() as calls:
            run(partial(case.values_and_gradients, 'cpu'))
        for function, arguments in calls.kept:
            called.add(str(function))
            wanted = run(partial(call, function, arguments))
            if isinstance(wanted, Exception):
                continue
            # The same numbers give the same, however they lie in memory.
            got = run(partial(call, function, alter(draw, arguments, LAYOUTS)))
            assert not isinstance(got, Exception), repr(got)
            check_alike(got, wanted)
            numel = max(t.numel() for t in arguments if isinstance(t, Tensor))
            if got[0].numel():  # else nothing was computed for the others
                check_equal(got, wanted, max(TOLERANCE[t.dtype] for t in got), numel)
            for _ in range(4):
                changed = alter(draw, arguments, WRONG)
                got = run(partial(call, function, changed))
                raised += isinstance(got, Exception)
                if isinstance(got, list):
                    # Tensors without values give the same shapes and dtypes.
                    without = call(function, [t.to('meta') if isinstance(t, Tensor) else t for t in changed])
                    check_alike([t.to('meta') for t in got], without)
    assert raised and len(called) >= 2, (raised, called)
