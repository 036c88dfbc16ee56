"""Operators on the neighbourhoods of pixels: CARAFE, the masks of PSANet, convolutions of some pixels.

The functions have mmcv's arguments; those of CARAFE that are buffers of compiled kernels are not used.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .precision import upcast_half


def carafe_naive_forward(
    features: Tensor, masks: Tensor, output: Tensor, kernel_size: int, group_size: int, scale_factor: int
) -> None:
    """Upsampling by a kernel for each pixel of the result (CARAFE, Wang et al., ICCV 2019), written to `output`.

    Args:
        features: (B, C, H, W).
        masks: Kernels on the pixels of `features`, (B, groups * kernel_size^2, scale * H, scale * W).
        output: (B, C, scale * H, scale * W).
        kernel_size: Side of a kernel, odd.
        group_size: Number of groups of channels, which have a kernel each.
        scale_factor: Pixels of the result beside each other for one of `features`.
    """
    output.copy_(_reassemble(upcast_half(features), upcast_half(masks), kernel_size, group_size, scale_factor))


def carafe_naive_backward(
    top_grad: Tensor, features: Tensor, masks: Tensor, bottom_grad: Tensor, mask_grad: Tensor, **sizes: int
) -> None:
    """Gradients of `carafe_naive_forward`, which is computed again, written to `bottom_grad` and `mask_grad`."""
    inputs = [upcast_half(tensor).detach().requires_grad_() for tensor in (features, masks)]
    with torch.enable_grad():
        output = _reassemble(*inputs, **sizes)
    for written, grad in zip((bottom_grad, mask_grad), torch.autograd.grad(output, inputs, upcast_half(top_grad))):
        written.copy_(grad)


def carafe_forward(
    features: Tensor, masks: Tensor, rfeatures: Tensor, routput: Tensor, rmasks: Tensor, output: Tensor, **sizes: int
) -> None:
    """`carafe_naive_forward`; `rfeatures`, which mmcv keeps for the backward pass, gets the features."""
    rfeatures.copy_(features)
    carafe_naive_forward(features, masks, output, **sizes)


def carafe_backward(
    top_grad: Tensor,
    rfeatures: Tensor,
    masks: Tensor,
    rtop_grad: Tensor,
    rbottom_grad_hs: Tensor,
    rbottom_grad: Tensor,
    rmask_grad: Tensor,
    bottom_grad: Tensor,
    mask_grad: Tensor,
    **sizes: int,
) -> None:
    """`carafe_naive_backward`."""
    carafe_naive_backward(top_grad, rfeatures, masks, bottom_grad, mask_grad, **sizes)


def _reassemble(features: Tensor, masks: Tensor, kernel_size: int, group_size: int, scale_factor: int) -> Tensor:
    height, width = features.shape[2:]
    neighbours = F.unfold(features, kernel_size, padding=kernel_size // 2)  # (B, C * K, H * W)
    neighbours = neighbours.unflatten(2, (height, width)).unflatten(1, (group_size, -1, kernel_size**2))
    kernels = (
        masks.unflatten(3, (width, scale_factor)).unflatten(2, (height, scale_factor)).unflatten(1, (group_size, -1))
    )
    output = torch.einsum('bgckhw,bgkhswt->bgchswt', neighbours, kernels)
    return output.flatten(5).flatten(3, 4).flatten(1, 2)


def psamask_forward(input: Tensor, output: Tensor, psa_type: int, **geometry: int) -> None:
    """Weights of all pairs of pixels from those of the pixels around each (PSANet, Zhao et al., ECCV 2018).

    Args:
        input: Weights of the h_mask x w_mask pixels around each pixel, (B, h_mask * w_mask, H, W).
        output: Written in place, (B, H * W, H, W): with 'collect' each pixel's own weights are in the channels of its
            place, with 'distribute' in the map of its channel. Pixels outside the mask have weight 0.
        psa_type: 0 is 'collect', 1 is 'distribute'.
        **geometry: `h_mask` and `w_mask`, and `half_h_mask` and `half_w_mask`, where the centre of a mask is.
    """
    index, is_in = _mask_index(input, geometry)
    weights = input.flatten(2).gather(1, index) * is_in
    output.copy_((weights.transpose(1, 2) if psa_type else weights).reshape(output.shape))


def psamask_backward(grad_output: Tensor, grad_input: Tensor, psa_type: int, **geometry: int) -> None:
    """Gradient of `psamask_forward`, added to `grad_input`."""
    index, is_in = _mask_index(grad_input, geometry)
    grad = grad_output.flatten(2)
    grad_input.flatten(2).scatter_add_(1, index, (grad.transpose(1, 2) if psa_type else grad) * is_in)


def _mask_index(masks: Tensor, geometry: dict[str, int]) -> tuple[Tensor, Tensor]:
    """Index in the mask of each pixel (column) of every pixel (row), (B, H * W, H * W), and whether it is there."""
    axes = []
    for side, axis in zip(masks.shape[2:], 'hw'):
        pixels = torch.arange(side, device=masks.device)
        index = pixels[:, None] - pixels + geometry[f'half_{axis}_mask']
        reach = geometry[f'{axis}_mask']
        axes.append((index.clamp(0, reach - 1), (index >= 0) & (index < reach)))
    (row, is_row), (column, is_column) = axes
    index = row[:, None, :, None] * geometry['w_mask'] + column[None, :, None, :]
    is_in = is_row[:, None, :, None] & is_column[None, :, None, :]
    return index.flatten(2).flatten(0, 1).expand(len(masks), -1, -1), is_in.flatten(2).flatten(0, 1)


def masked_im2col_forward(
    im: Tensor,
    mask_h_idx: Tensor,
    mask_w_idx: Tensor,
    col: Tensor,
    kernel_h: int,
    kernel_w: int,
    pad_h: int,
    pad_w: int,
) -> None:
    """The pixels under a kernel at some places of an image (1, C, H, W), written to (C * kernel_h * kernel_w, P)."""
    padded = F.pad(im[0], (pad_w, pad_w, pad_h, pad_h))
    rows = mask_h_idx + torch.arange(kernel_h, device=im.device)[:, None]
    columns = mask_w_idx + torch.arange(kernel_w, device=im.device)[:, None]
    col.copy_(padded[:, rows[:, None], columns].reshape(col.shape))


def masked_col2im_forward(
    col: Tensor, mask_h_idx: Tensor, mask_w_idx: Tensor, im: Tensor, height: int, width: int, channels: int
) -> None:
    """Put values (C, P) to their places in an image (1, C, H, W)."""
    im[0][:, mask_h_idx, mask_w_idx] = col
