"""`python -m bioattn_mm.ops --check`: the operators of this machine against their formulas, and how fast they are.

The formulas run in float64 on the same device. What comes out is a report in Markdown, to paste into an issue.
"""

import statistics
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from .backends import available_backends
from .samples import HALF, OPERATORS, Operator, Sizes

# Largest error of a result, as a fraction of its largest value.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
# Gradients of parameters are sums over all tokens, in which large terms cancel: they may differ by more, as in
# PyTorch (that of the scale in float32 by 1.4e-5 where the operator's differs by 3.0e-5).
GRADIENT_FACTOR = 4
SMALLEST_SCALE = 0.1
SECONDS_TO_TIME = 0.2  # for each time, about
REPEATS = 5  # of which a time is the median


def check(device: str, operators: Sequence[str], times: bool = True) -> bool:
    """Print the report; whether everything agreed."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    columns = (TextColumn('{task.description}'), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    start = time.perf_counter()
    cases = [
        (name, dtype, sizes)
        for name in operators
        for dtype in OPERATORS[name].dtypes.get(device, ())
        for sizes in OPERATORS[name].sizes
    ]
    to_time = [(name, dtype) for name in operators for dtype in OPERATORS[name].dtypes.get(device, ()) if times]
    to_time = [
        (name, dtype) for name, dtype in to_time if dtype != torch.float64 and (device == 'cuda' or dtype not in HALF)
    ]
    backend = available_backends(torch.device(device))[0]
    failures = 0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        step = partial(progress.advance, progress.add_task('checking', total=len(cases) + 2 * len(to_time)))
        console.print(f'Values and gradients of the backend `{backend}` against the formulas in float64:\n')
        print_row(console, 'operator', 'dtype', 'sizes', 'output', 'gradients', 'allowed', 'the same twice', '')
        print_row(console, *['---'] * 8)
        for name, dtype, sizes in cases:
            agrees, cells = compare(OPERATORS[name], device, backend, dtype, sizes)
            failures += not agrees
            text = ', '.join(f'{key} {value}' for key, value in sizes.items()) or 'defaults'
            print_row(console, name, name_of(dtype), text, *cells, 'ok' if agrees else '**DIFFERENT**')
            step()
        if times:
            bandwidth = copy_bandwidth(device)
            console.print(
                f'\nCopies: {bandwidth / 1e9:.3g} GB/s, read and written. Times, each the median of several:\n'
            )
            header = ('operator', 'sizes', 'dtype', 'pass', 'time', 'GB/s', 'of copies', 'formulas')
            print_row(console, *header)
            print_row(console, *['---'] * len(header))
            for name, dtype in to_time:
                for row in time_operator(name, device, backend, dtype, bandwidth):
                    print_row(console, *row)
                    step()
    seconds = time.perf_counter() - start
    result = f'{failures} of {len(cases)} DIFFERENT' if failures else f'all {len(cases)} agree'
    console.print(f'\n{result}; {seconds:.0f} s')
    return failures == 0


def print_row(console: Console, *cells: object) -> None:
    """A row of a table in Markdown."""
    console.print(f'| {" | ".join(map(str, cells))} |')


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix('torch.')


def compare(
    operator: Operator, device: str, backend: str, dtype: torch.dtype, sizes: Sizes
) -> tuple[bool, tuple[str, str, str, str]]:
    """Whether an operator agrees with its formula, and twice with itself; and the cells that say how far.

    Errors are fractions of the largest value of each result.
    """
    tolerance = TOLERANCE[dtype]
    try:
        torch.manual_seed(0)
        inputs = operator.inputs(sizes, device, dtype)
        exact = [t.double() if t.is_floating_point() else t for t in inputs]
        first, second = (operator.values_and_gradients(inputs, backend) for _ in range(2))
        wanted = operator.values_and_gradients(exact, 'reference')
        # The gradient of a parameter is a sum over the tokens, and grows about as the square root of their number.
        scales = [SMALLEST_SCALE * max(inputs[0].numel() / max(want.numel(), 1), 1) ** 0.5 for want in wanted]
        errors = [relative_error(*each) for each in zip(first, wanted, scales, strict=True)]
    except Exception as error:  # of any kind: it belongs into the report
        message = (str(error).splitlines() or [''])[0].replace('|', '/')
        return False, (f'{type(error).__name__}: {message}', '', f'{tolerance:.0e}', '')
    repeats = all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    expected = [dtype, *(t.dtype for t in operator.leaves(inputs))]
    dtypes_fit = [result.dtype for result in first] == expected
    of_gradients = GRADIENT_FACTOR * tolerance
    agrees = repeats and dtypes_fit and errors[0] <= tolerance and all(error <= of_gradients for error in errors[1:])
    allowed = f'{tolerance:.0e}, {of_gradients:.0e}'
    cells = (f'{errors[0]:.1e}', f'{max(errors[1:]):.1e}', allowed, 'yes' if repeats else '**no**')
    return agrees, cells


def relative_error(result: Tensor, want: Tensor, smallest_scale: float = SMALLEST_SCALE) -> float:
    """Largest difference, as a fraction of the largest finite value; inf for a NaN or another shape.

    Where all values are small, as the gradients of a softmax over one key are zero, it is a fraction of
    `smallest_scale`: the inputs are around 1.
    """
    if result.shape != want.shape:
        return float('inf')
    if not want.numel():
        return 0.0
    scale = want.abs().nan_to_num(posinf=0).max().clamp(min=smallest_scale)
    difference = torch.where(result == want, 0, (result.double() - want).abs() / scale)
    return difference.nan_to_num(nan=float('inf')).max().item()


def time_operator(
    name: str, device: str, backend: str, dtype: torch.dtype, bandwidth: float
) -> Iterator[tuple[str, ...]]:
    """The cells of an operator's forward pass, and those of forward and backward."""
    operator = OPERATORS[name]
    described, sizes = operator.timed[device]
    inputs = operator.inputs(sizes, device, dtype)
    leaves = operator.leaves(inputs)
    functions = [partial(operator.run, backend=name) for name in (backend, 'reference')]
    with torch.no_grad():
        output = operator.run(*inputs, backend=backend)
    read, written = sum(t.nbytes for t in inputs), output.nbytes
    gradient = torch.ones_like(output)
    # The backward pass reads the inputs and the output's gradient, and writes the inputs' gradients.
    for title, trains, moved in (
        ('forward', False, read + written),
        ('forward + backward', True, 3 * read + 2 * written),
    ):
        for tensor in leaves:
            tensor.requires_grad_(trains)
        ours, formulas = (
            time_of(partial(training_step, run, inputs, leaves, gradient) if trains else partial(run, *inputs))
            for run in functions
        )
        yield (
            *(name, described, name_of(dtype), title, time_text(ours), f'{moved / ours / 1e9:.3g}'),
            f'{moved / ours / bandwidth:.0%}',
            f'{time_text(formulas)}, {formulas / ours:.1f}x',
        )


def training_step(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], leaves: Sequence[Tensor], gradient: Tensor
) -> None:
    torch.autograd.grad(function(*inputs), leaves, gradient)


def time_of(step: Callable[[], object]) -> float:
    """Seconds of a call, the median of several; `torch.utils.benchmark` needs setuptools, which may not be there."""

    def now() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    step()
    timer = timeit.Timer(step, timer=now)
    number = max(round(SECONDS_TO_TIME / REPEATS / timer.timeit(1)), 1)
    return statistics.median(timer.repeat(REPEATS, number)) / number


def time_text(seconds: float) -> str:
    """Such as '31.2 ms'."""
    return f'{1e3 * seconds:.3g} ms'


def copy_bandwidth(device: str) -> float:
    """Bytes a second, read and written, of a copy that is larger than any cache."""
    source = torch.zeros(2**28, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return 2 * source.nbytes / time_of(partial(target.copy_, source))
