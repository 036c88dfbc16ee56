"""Focal loss (Lin et al., ICCV 2017) of a sigmoid and of a softmax, forward and backward."""

import torch
from torch import Tensor

from .precision import upcast_half

# Lower bound of the arguments of logarithms and of the bases of negative powers.
SMALLEST = torch.finfo(torch.float32).tiny


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Binary focal loss of each class, with p = sigmoid(input)::

        -alpha (1 - p)^gamma log(p)          for the class of the target
        -(1 - alpha) p^gamma log(1 - p)      for the other classes

    As in mmcv, the argument of a logarithm is at least 1.2e-38, so that the loss stays below 88. mmcv computes 1 - p
    from a rounded p, which is inaccurate for logits above 10 or so and 0 above 17; here 1 - p is sigmoid(-input).

    Args:
        input: Logits, (N, C).
        target: Class of each row, int64 (N,); any value outside 0 ... C - 1 is background.
        weight: Weight of the rows of each class, (C,), or empty for none; background rows have weight 1.
        output: Written in place, (N, C).
        gamma: The exponent.
        alpha: The weight of the target's class.
    """
    p, not_p = _sigmoid_and_complement(input)
    positive = not_p.pow(gamma) * _log(p)
    negative = p.pow(gamma) * _log(not_p)
    loss = torch.where(_is_target(input, target), -alpha * positive, -(1 - alpha) * negative)
    output.copy_(loss * _row_weights(weight, target, p)[:, None])


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Derivative of each element of `sigmoid_focal_loss_forward` by its logit; the arguments are as there."""
    p, not_p = _sigmoid_and_complement(input)
    positive = not_p.pow(gamma) * (not_p - gamma * p * _log(p))
    negative = p.pow(gamma) * (gamma * not_p * _log(not_p) - p)
    grad = torch.where(_is_target(input, target), -alpha * positive, -(1 - alpha) * negative)
    grad_input.copy_(grad * _row_weights(weight, target, p)[:, None])


def softmax_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """-alpha (1 - p)^gamma log(p) of each row, where p is the probability of its target.

    Args:
        input: Probabilities, the softmax of the logits, (N, C).
        target: Class of each row, int64 (N,); a negative one has loss 0.
        weight: Weight of the rows of each class, (C,), or empty for none.
        output: Written in place, (N,).
        gamma: Exponent.
        alpha: Weight of all rows.
    """
    p, weights = _probability_of_target(input, target, weight)
    output.copy_(-alpha * (1 - p).pow(gamma) * _log(p) * weights)


def softmax_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, buff: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Derivative of each row of `softmax_focal_loss_forward` by its logits, written to `grad_input`."""
    p, weights = _probability_of_target(input, target, weight)
    by_log = alpha * weights * (gamma * p * (1 - p).pow(gamma - 1) * _log(p) - (1 - p).pow(gamma))
    grad_input.copy_(by_log[:, None] * (_is_target(input, target).to(p.dtype) - upcast_half(input)))


def _probability_of_target(probabilities: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Probability of each row's target, and the row's weight, which is 0 without a target: (N,) each."""
    classes = target.clamp(min=0)
    p = upcast_half(probabilities).gather(1, classes[:, None])[:, 0]
    weights = weight[classes].to(p.dtype) if weight.numel() else torch.ones_like(p)
    return p, weights * (target >= 0)


def _sigmoid_and_complement(logits: Tensor) -> tuple[Tensor, Tensor]:
    """sigmoid(x) and 1 - sigmoid(x), the latter without cancellation."""
    logits = upcast_half(logits)
    return logits.sigmoid(), (-logits).sigmoid()


def _log(probability: Tensor) -> Tensor:
    return probability.clamp(min=SMALLEST).log()


def _is_target(input: Tensor, target: Tensor) -> Tensor:
    """True in the column of each row's target, bool (N, C)."""
    return target[:, None] == torch.arange(input.size(1), device=input.device)


def _row_weights(weight: Tensor, target: Tensor, like: Tensor) -> Tensor:
    """Weight of each row, (N,): that of its class, 1 if the class has none."""
    if weight.numel() == 0:
        return like.new_ones(len(target))
    has_weight = (target >= 0) & (target < len(weight))
    return torch.where(has_weight, weight[target.clamp(0, len(weight) - 1)].to(like.dtype), 1)
