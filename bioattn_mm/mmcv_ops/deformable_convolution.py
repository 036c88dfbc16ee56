"""Deformable convolution (Dai et al., ICCV 2017) and its modulated form (Zhu et al., CVPR 2019), by torchvision.

The functions have mmcv's arguments, tensors by their places; `columns`, `ones` and `im2col_step` of compiled kernels
are not used. `geometry` is stride, padding, dilation and groups, by mmcv's names. Of an image (B, C, H, W), `weight`
is (C', C / group, kH, kW) and `output` (B, C', H', W'). `offset` moves the samples by (y, x) in pixels, (B,
deformable_group * kH * kW * 2, H', W'), and `mask` weights them, with half as many channels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.ops import deform_conv2d

from .precision import upcast_half


def deform_conv_forward(
    input: Tensor, weight: Tensor, offset: Tensor, output: Tensor, columns: Tensor, ones: Tensor, **geometry: int
) -> None:
    """Convolution of samples that `offset` moves, written to `output`."""
    stride, padding, dilation = _checked(input, weight, offset, geometry)
    output.copy_(deform_conv2d(*map(upcast_half, (input, offset, weight)), None, stride, padding, dilation))


def deform_conv_backward_input(*tensors: Tensor, **geometry: int) -> None:
    """Gradients by image and offsets, written to `gradInput` and `gradOffset`."""
    input, offset, gradOutput, gradInput, gradOffset, weight, _ = tensors
    of_input, _, of_offset, *_ = _backward(gradOutput, input, weight, offset, None, geometry)
    gradInput.copy_(of_input)
    gradOffset.copy_(_as_of_mmcv(of_offset, offset, weight, geometry))


def deform_conv_backward_parameters(*tensors: Tensor, scale: float, **geometry: int) -> None:
    """Gradient by the weights, times `scale`, added to `gradWeight`."""
    input, offset, gradOutput, gradWeight, *_ = tensors
    gradWeight += scale * _backward(gradOutput, input, gradWeight, offset, None, geometry)[1]


def modulated_deform_conv_forward(*tensors: Tensor, with_bias: bool, **geometry: int) -> None:
    """Convolution of samples that `offset` moves and `mask` weights, written to `output`."""
    input, weight, bias, _, offset, mask, output, _ = tensors
    stride, padding, dilation = _checked(input, weight, offset, geometry)
    offset, mask = (_first(tensor, output.shape[2:]) for tensor in (offset, mask))
    image, offset, weight, mask, bias = map(upcast_half, (input, offset, weight, mask, bias))
    bias = bias if with_bias else None
    output.copy_(deform_conv2d(image, offset, weight, bias, stride, padding, dilation, mask))


def modulated_deform_conv_backward(*tensors: Tensor, with_bias: bool, **geometry: int) -> None:
    """Gradients of `modulated_deform_conv_forward`, written to the tensors of these names."""
    input, weight, _, _, offset, mask, _, grad_input, grad_weight, grad_bias, grad_offset, grad_mask, grad_output = (
        tensors
    )
    size = grad_output.shape[2:]
    offset, mask = _first(offset, size), _first(mask, size)
    grads = _backward(grad_output, input, weight, offset, mask, geometry)
    _as_of_mmcv(grads[2], offset, weight, geometry)
    written = [grad_input, grad_weight, _first(grad_offset, size), _first(grad_mask, size), *[grad_bias] * with_bias]
    for tensor, grad in zip(written, grads):
        tensor.copy_(grad)


def _checked(
    input: Tensor, weight: Tensor, offset: Tensor, geometry: dict[str, int]
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Stride, padding and dilation. torchvision would take other numbers of groups from the channels."""
    *pairs, groups, offset_groups = _pairs(geometry)
    channels = (input.size(1), offset.size(1))
    expected = (groups * weight.size(1), 2 * offset_groups * weight.size(2) * weight.size(3))
    if channels != expected:
        raise RuntimeError(f'expected {expected} channels of the image and of its offsets, got {channels}')
    return tuple(pairs)


def _first(tensor: Tensor, size: Sequence[int]) -> Tensor:
    """The first elements (B, C, *size) of each image of a larger tensor, as mmcv's kernels read it.

    DyHead gives a smaller map the offsets of the level below: its weights are trained with what kernels read of them.
    """
    if tensor.shape[2:] == size:
        return tensor
    channels = tensor.size(1)
    return tensor.flatten(1)[:, : channels * size[0] * size[1]].unflatten(1, (channels, *size))


def _backward(
    grad: Tensor, input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None, geometry: dict[str, int]
) -> tuple[Tensor, ...]:
    """Gradients by image, weights, offsets, mask and bias."""
    grad, input, weight, offset = map(upcast_half, (grad, input, weight, offset))
    modulation = input.new_zeros(len(input), 1) if mask is None else upcast_half(mask)
    stride, padding, dilation, groups, offset_groups = _pairs(geometry)
    sizes = (*stride, *padding, *dilation, groups, offset_groups)
    bias = input.new_zeros(weight.size(0))
    return torch.ops.torchvision._deform_conv2d_backward(
        grad, input, weight, offset, modulation, bias, *sizes, mask is not None
    )


def _as_of_mmcv(grad: Tensor, offset: Tensor, weight: Tensor, geometry: dict[str, int]) -> Tensor:
    """torchvision's gradient of the offsets as mmcv has it at the border, changed in place.

    At -1 a sample begins to see the image: mmcv's derivative there is that of the outside, torchvision's that of the
    inside. Where offsets begin at zero, samples of the padding lie exactly there.
    """
    stride, padding, dilation, *_ = _pairs(geometry)
    axes = []
    for kernel, side, step, pad, spread in zip(weight.shape[2:], offset.shape[2:], stride, padding, dilation):
        outputs = torch.arange(side, device=offset.device) * step - pad
        axes.append(torch.arange(kernel, device=offset.device)[:, None] * spread + outputs)  # (kernel, side)
    rows, columns = axes[0][:, None, :, None], axes[1][None, :, None, :]
    base = torch.stack(torch.broadcast_tensors(rows, columns), dim=2).flatten(0, 1)  # (kH * kW, 2, H', W')
    places = upcast_half(offset).unflatten(1, (-1, *base.shape[:2])) + base
    return grad.masked_fill_(places.flatten(1, 3) == -1, 0)


def _pairs(geometry: dict[str, int]) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], int, int]:
    """Stride, padding and dilation as (y, x), and both numbers of groups, by the names of either operator."""
    names = ('dH', 'dW', 'padH', 'padW', 'dilationH', 'dilationW')
    if 'stride_h' in geometry:
        names = ('stride_h', 'stride_w', 'pad_h', 'pad_w', 'dilation_h', 'dilation_w')
    *sizes, groups, offset_groups = (geometry[name] for name in (*names, 'group', 'deformable_group'))
    return tuple(sizes[:2]), tuple(sizes[2:4]), tuple(sizes[4:]), groups, offset_groups
