"""Checks of the operators' arguments, and what PyTorch's modes make of them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps

import torch
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
UNCHANGED = nullcontext()
# Under these keys PyTorch's dispatcher casts.
AUTOCAST_KEYS = dict(cpu=torch._C.DispatchKey.AutocastCPU, cuda=torch._C.DispatchKey.AutocastCUDA)
AUTOCAST = torch._C.DispatchKeySet(AUTOCAST_KEYS['cpu']) | torch._C.DispatchKeySet(AUTOCAST_KEYS['cuda'])


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype that an operator computes in: the tensor's, or autocast's unless it is float64 or an integer."""
    device = tensor.device.type
    takes_part = tensor.is_floating_point() and tensor.dtype != torch.float64 and not tensor.is_meta
    return torch.get_autocast_dtype(device) if takes_part and is_autocast(device) else tensor.dtype


def is_autocast(device: str) -> bool:
    """Whether autocast is on for a device, and not `without_autocast`."""
    if not torch.is_autocast_enabled(device):
        return False
    key = AUTOCAST_KEYS.get(device)
    return key is None or torch.compiler.is_compiling() or not torch._C._dispatch_tls_is_dispatch_key_excluded(key)


def without_autocast(tensor: Tensor) -> AbstractContextManager:
    """Context without autocast on a tensor's device; the device meta has none."""
    device = 'cpu' if tensor.is_meta else tensor.device.type
    if not torch.compiler.is_compiling():  # a graph may run under autocast
        if not torch.is_autocast_enabled(device):
            return UNCHANGED
        if device in AUTOCAST_KEYS:  # `torch.autocast` makes ten times as many calls
            return torch._C._ExcludeDispatchKeyGuard(AUTOCAST)
    return torch.autocast(device, enabled=False)


def with_operator_dtypes(reference: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Run a function of tensors as the compiled operators: autocast casts, and half precision computes in float32."""

    @wraps(reference)
    def run(*tensors: Tensor) -> Tensor:
        dtype = autocast_dtype(tensors[0])
        compute_dtype = torch.promote_types(dtype, torch.float32)
        rounded = [tensor.to(autocast_dtype(tensor)) for tensor in tensors]
        with without_autocast(tensors[0]):
            return reference(*(t.to(compute_dtype) if t.is_floating_point() else t for t in rounded)).to(dtype)

    return run


def full_precision(x: Tensor) -> Tensor:
    """Convert half precision to float32; float32 and float64 stay as they are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def window_size_of(offsets: int) -> int:
    """Side k of a window of k * k offsets; traced lengths are tensors."""
    return round(int(offsets) ** 0.5)


def check_tokens(name: str, tokens: Tensor) -> None:
    """Raise a `ValueError` unless `tokens` are (B, H, W, heads, d) in a dtype of the operators."""
    if tokens.dim() != 5:
        raise ValueError(f'{name} must be (B, H, W, heads, d), got shape {tuple(tokens.shape)}')
    check_dtype(name, tokens)


def check_dtype(name: str, tensor: Tensor) -> None:
    """Raise a `ValueError` unless a tensor has a dtype of the operators."""
    if tensor.dtype not in DTYPES:
        accepted = ', '.join(str(dtype).removeprefix('torch.') for dtype in DTYPES)
        raise ValueError(f'{name} must be one of {accepted}, got {str(tensor.dtype).removeprefix("torch.")}')


def check_offsets(name: str, tensor: Tensor, shape: str) -> int:
    """The last dimension, k * k offsets in a window; a `ValueError` unless it is the square of an odd number k."""
    offsets = tensor.shape[-1] if tensor.dim() else 0
    window_size = window_size_of(offsets)
    if window_size % 2 == 0 or window_size**2 != offsets:
        raise ValueError(
            f'{name} must be {shape} with k odd, got shape {tuple(tensor.shape)}: '
            f'{offsets} is not the square of an odd number'
        )
    return offsets


def check_fits(
    to: str, first: Tensor, dtype: torch.dtype | None, **others: tuple[Tensor | None, tuple[int, ...]]
) -> None:
    """Raise a `ValueError` unless each of `others` has its shape, and the device of an operator's `first` argument.

    `to` is the name of the first. Their dtype must be `dtype`, or where that is None, after autocast, the first's.
    """
    for name, (tensor, shape) in others.items():
        if tensor is None:
            continue
        if tensor.shape != shape:
            got = tuple(tensor.shape)
            raise ValueError(f'{name} must have shape {tuple(shape)} to fit {to} {tuple(first.shape)}, got {got}')
        if tensor.device != first.device:
            raise ValueError(f'{name} is on {tensor.device}, but {to} is on {first.device}')
        if tensor.dtype != (dtype or first.dtype) and (dtype or autocast_dtype(tensor) != autocast_dtype(first)):
            raise ValueError(f'{name} must be {dtype or first.dtype} to fit {to}, got {tensor.dtype}')


def check_table(
    name: str, query: Tensor, key_grid: tuple[int, int], table: Tensor, rows: Tensor, weights: Tensor, columns: Tensor
) -> None:
    """Raise a `ValueError` unless a table of biases has rows and columns for all pairs (see `cosine_attention`)."""
    _, height, width, heads, _ = query.shape
    number, full = max((1, *rows.shape[2:3])), torch.promote_types(query.dtype, torch.float32)
    shape = (heads, *table.shape[1:]) if table.dim() == 3 else (heads, -1, -1)
    check_fits('query', query, torch.int64, **{f'{name}_rows': (rows, (height, key_grid[0], number))})
    check_fits('query', query, torch.int64, **{f'{name}_columns': (columns, (width, key_grid[1]))})
    check_fits('query', query, full, **{f'{name}_weights': (weights, (height, key_grid[0], number - 1))})
    check_fits('query', query, full, **{name: (table, shape)})
