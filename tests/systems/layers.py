"""What tests of layers share: parameters that matter, heads, and the comparison with a formula."""

import torch
from torch import Tensor, nn


def randomized(layer: nn.Module, std: float = 0.3) -> nn.Module:
    """In float64 and eval mode (timm's MLP of positions has dropout), with parameters that all matter."""
    for parameter in layer.double().parameters():
        parameter.data += std * torch.randn_like(parameter)
    return layer.eval()


def split_heads(x: Tensor, num_heads: int = 3) -> Tensor:
    """(B, H, W, C) to (B, heads, H * W, d)."""
    return x.flatten(1, 2).unflatten(-1, (num_heads, -1)).transpose(1, 2)


def check_formula(
    output: Tensor, want: Tensor, inputs: list[Tensor], values: dict | None = None, gradients: dict | None = None
) -> None:
    """Values and gradients of the inputs, with a tolerance each; no gradient is one of zeros."""
    torch.testing.assert_close(output, want, **values or {})
    upstream = torch.randn_like(output)
    both = (torch.autograd.grad(y, inputs, upstream, allow_unused=True) for y in (output, want))
    for tensor, *pair in zip(inputs, *both, strict=True):
        got, wanted = (torch.zeros_like(tensor) if gradient is None else gradient for gradient in pair)
        torch.testing.assert_close(got, wanted, **gradients or {})
