"""Memory layouts of feature maps: tokens have the channels last, what the heads take has them first."""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from ...ops.portable import is_traced, is_transformed
from ...ops.registration import apply
from .grid import Grid


def as_map(tokens: Tensor, grid: Grid) -> Tensor:
    """Tokens, (B, H, W, C), or (B, H * W, C) without or with a class token first, to a map, (B, C, H, W)."""
    if tokens.dim() == 3:
        tokens = tokens[:, tokens.shape[1] - grid[0] * grid[1] :].unflatten(1, grid)
    x = tokens.permute(0, 3, 1, 2)
    if x.requires_grad and x.device.type == 'cpu' and not (is_traced() or is_transformed()):
        return apply(_ChannelsFirst, x)
    return x.contiguous()


class _ChannelsFirst(torch.autograd.Function):
    """`contiguous` of maps with the channels last in memory, whose gradient has them last, too.

    Else autograd would add a gradient with the channels first to that of the next stage, with the channels last,
    element by element, which takes ten times as long.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        return x.contiguous()

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> Tensor:
        if torch.is_grad_enabled():  # a second derivative is wanted, and autograd does not follow copies into views
            return grad.contiguous(memory_format=torch.channels_last)
        batch, channels, height, width = grad.shape
        tokens = grad.new_empty(batch, height * width, channels)
        for target, image in zip(tokens, grad):
            target.copy_(image.flatten(1).t())  # a matrix is transposed in blocks
        return tokens.view(batch, height, width, channels).permute(0, 3, 1, 2)
