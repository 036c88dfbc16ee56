"""The report of `python -m bioattn_mm.ops --check`, in Markdown, to paste into an issue."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from .backends import available_backends
from .samples import OPERATORS, Operator, Sizes

# Largest error of a result, as a fraction of its largest value.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
# Gradients of parameters are sums over all tokens, in which large terms cancel: they may differ by more, as in
# PyTorch (that of the scale in float32 by 1.4e-5 where the operator's differs by 3.0e-5).
GRADIENT_FACTOR = 4
SMALLEST_SCALE = 0.1


def check(device: str, operators: Sequence[str]) -> bool:
    """Print the report; whether everything agreed."""
    start, results = time.perf_counter(), []
    backend = available_backends(torch.device(device))[0]
    print(f'Values and gradients of the backend `{backend}` against the formulas in float64:\n')
    print('| operator | dtype | sizes | output | gradients | allowed | the same twice | |')
    print('| --- | --- | --- | --- | --- | --- | --- | --- |')
    for name in operators:
        for dtype in OPERATORS[name].dtypes.get(device, ()):
            for sizes in OPERATORS[name].sizes:
                agrees, cells = compare(OPERATORS[name], device, backend, dtype, sizes)
                results.append(agrees)
                text = ', '.join(f'{key} {value}' for key, value in sizes.items()) or 'defaults'
                row = name, str(dtype).removeprefix('torch.'), text, *cells, 'ok' if agrees else '**DIFFERENT**'
                print(f'| {" | ".join(row)} |', flush=True)
    failures = results.count(False)
    result = f'{failures} of {len(results)} DIFFERENT' if failures else f'all {len(results)} agree'
    print(f'\n{result}; {time.perf_counter() - start:.0f} s')
    return failures == 0


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
    same = [torch.equal(one, other) for one, other in zip(first, second, strict=True)]
    repeats = same[0] and (all(same) or device in operator.any_order)
    dtypes_fit = [result.dtype for result in first] == [dtype, *(t.dtype for t in operator.leaves(inputs))]
    of_gradients = GRADIENT_FACTOR * tolerance
    agrees = repeats and dtypes_fit and errors[0] <= tolerance and all(error <= of_gradients for error in errors[1:])
    allowed = f'{tolerance:.0e}, {of_gradients:.0e}'
    return agrees, (f'{errors[0]:.1e}', f'{max(errors[1:]):.1e}', allowed, 'yes' if repeats else '**no**')


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
