"""Sparse codes by proximal gradient steps, the recurrence of VARS' attention."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from .arguments import check_fits, without_autocast
from .backends import choose_backend
from .registration import differentiable


def soft_threshold(x: Tensor, threshold: Tensor | float) -> Tensor:
    """sign(x) max(|x| - threshold, 0), the proximal operator of the L1 norm."""
    return x - x.clamp(-threshold, threshold)


def gelu_threshold(x: Tensor, threshold: Tensor | float) -> Tensor:
    """sign(x) GELU(|x| - threshold), the release's smooth version in VARS-D and VARS-SD."""
    return x.detach().sign() * F.gelu(x.abs() - threshold)  # the sign has no gradient


def proximal_steps(
    advance: Callable[[Tensor], Tensor],
    target: Tensor,
    length: Tensor,
    penalty: Tensor | float,
    num_steps: int,
    threshold: Callable[[Tensor, Tensor | float], Tensor],
) -> Iterator[Tensor]:
    """Proximal gradient steps on `|x - P u|^2 / 2 + penalty |u|_1` (VARS, eq. 10 and 12), the first from u = 0.

    Args:
        advance: A step without the penalty: of u, `u - length * (P^T P u - target)`.
        target: P^T x, of any shape, which is that of the codes: the first without a penalty (section 3.4).
        length: Length of the steps after the first, 1. With the soft threshold the objective never rises if it is at
            most 2 / (largest eigenvalue of P^T P).
        penalty: Weight of the L1 norm.
        num_steps: Number of codes after the first.
        threshold: `soft_threshold` or `gelu_threshold`.
    """
    codes = threshold(target, penalty)
    yield codes
    penalty = length * penalty
    for _ in range(num_steps):
        codes = threshold(advance(codes), penalty)
        yield codes


def sparse_codes(
    gram: Tensor, target: Tensor, length: Tensor, penalty: Tensor, num_steps: int, backend: str | None = None
) -> Tensor:
    """The last of the `code_steps` with `gelu_threshold`, as one operator.

    Args:
        gram: Gram matrices, (..., m, m), float32 or float64.
        target: (..., m, d), in the dtype of `gram`, as what follows.
        length: Length of the steps after the first, (..., 1, 1).
        penalty: (1,).
        num_steps: Number of steps after the first.
        backend: 'cpu', 'cuda' or 'reference'; by default see `choose_backend`.

    Returns:
        (..., m, d).
    """
    if target.dim() < 3 or target.dtype not in (torch.float32, torch.float64):
        raise ValueError(f'target must be (..., m, d), float32 or float64, got {target.dtype} {tuple(target.shape)}')
    *others, states, _ = target.shape
    of_steps = dict(gram=(gram, (*others, states, states)), length=(length, (*others, 1, 1)), penalty=(penalty, (1,)))
    check_fits('target', target, target.dtype, **of_steps)
    if choose_backend(target.device, backend) != 'reference':
        matrices = gram.flatten(0, -3), target.flatten(0, -3), length.flatten()
        codes = differentiable('sparse_codes', *matrices, penalty, num_steps, torch.is_grad_enabled())[0]
        return codes.view(target.shape)
    with without_autocast(target):
        return last_of(code_steps(gram, target, length, penalty, num_steps, gelu_threshold))


def last_of(steps: Iterator[Tensor]) -> Tensor:
    """The codes after the last step; the earlier ones are not kept in memory."""
    for codes in steps:
        last = codes
    return last


def code_steps(
    gram: Tensor, target: Tensor, length: Tensor, penalty: Tensor | float, num_steps: int, threshold: Callable
) -> Iterator[Tensor]:
    """All `proximal_steps` with a Gram matrix, `u - length * (gram u - target)` without the threshold."""
    # Products with the length of a step are the same in all of them.
    matrix, constant = -length * gram, length * target
    return proximal_steps(
        lambda codes: constant + codes + matrix @ codes, target, length, penalty, num_steps, threshold
    )
