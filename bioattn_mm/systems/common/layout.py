"""Layouts of tokens: grids of them, attention heads, and feature maps, which have the channels first."""

import torch
from torch import Size, Tensor
from torch.autograd.function import FunctionCtx

from ...errors import InputError
from ...ops.portable import is_traced, is_transformed
from ...ops.registration import apply

# (height, width) in tokens.
Grid = tuple[int, int]


def head_dims_of(embed_dims: int, num_heads: int) -> int:
    """Width of each attention head; raises an `InputError` unless `num_heads` divides `embed_dims`."""
    if embed_dims % num_heads:
        raise InputError(f'embed_dims must be a multiple of num_heads, got {embed_dims} and {num_heads}')
    return embed_dims // num_heads


def split_heads(x: Tensor, parts: int, num_heads: int) -> tuple[Tensor, ...]:
    """Split a projection into queries, keys and values: (B, H, W, parts * C) to `parts` of (B, heads, H * W, d)."""
    channels = x.shape[-1] // (parts * num_heads)
    return x.reshape(x.shape[0], -1, parts, num_heads, channels).permute(2, 0, 3, 1, 4).unbind()


def merge_heads(x: Tensor, shape: Size) -> Tensor:
    """Concatenate the heads' outputs: (B, heads, H * W, d) to `shape`, (B, H, W, C)."""
    return x.transpose(1, 2).reshape(shape)


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
