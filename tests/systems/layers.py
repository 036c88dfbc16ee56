"""What tests of layers share: parameters that matter, tokens, heads, and the comparison with a formula."""

import torch
from torch import Tensor, nn


def randomized(layer: nn.Module, std: float = 0.3) -> nn.Module:
    """In float64 and eval mode (timm's MLP of positions has dropout), with parameters that all matter."""
    for parameter in layer.double().parameters():
        parameter.data += std * torch.randn_like(parameter)
    return layer.eval()


def tokens(grid: tuple[int, int], batch: int = 2) -> Tensor:
    return torch.randn(batch, *grid, 12, dtype=torch.float64, requires_grad=True)


def split_heads(x: Tensor, num_heads: int = 3) -> Tensor:
    """(B, H, W, C) to (B, heads, H * W, d)."""
    return x.flatten(1, 2).unflatten(-1, (num_heads, -1)).transpose(1, 2)


def check_formula(
    output: Tensor, want: Tensor, inputs: list[Tensor], values: dict | None = None, gradients: dict | None = None
) -> None:
    """Values and gradients of the inputs, with a tolerance each."""
    torch.testing.assert_close(output, want, **values or {})
    upstream = torch.randn_like(output)
    # No parameter may be without use, which breaks DistributedDataParallel; that of the formula is one of zeros.
    got = torch.autograd.grad(output, inputs, upstream)
    wanted = torch.autograd.grad(want, inputs, upstream, materialize_grads=True)
    for pair in zip(got, wanted, strict=True):
        torch.testing.assert_close(*pair, **gradients or {})
