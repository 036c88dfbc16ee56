"""A small TransNeXt with parameters that all matter, and a training step of it."""

import torch
from torch import Tensor, nn

from bioattn_mm.systems.transnext import TransNeXt

SMALL = dict(embed_dims=(24, 48, 48, 96), num_heads=(1, 2, 2, 4), depths=(2, 1, 2, 2))


def model(**options) -> TransNeXt:
    torch.manual_seed(0)
    backbone = TransNeXt(**{'arch': SMALL, **options}).train()
    for name, parameter in backbone.named_parameters():
        if name.endswith('bias'):  # they begin as zeros, which would hide that one is left out
            nn.init.normal_(parameter, std=0.1)
    return backbone


def step(
    backbone: nn.Module, autocast: torch.dtype | None = None, size: tuple[int, int] = (96, 64)
) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs, and gradients of the image and of the parameters."""
    torch.manual_seed(1)
    image = torch.randn(2, 3, *size, dtype=next(backbone.parameters()).dtype, requires_grad=True)
    backbone.zero_grad()
    with torch.autocast('cpu', autocast or torch.bfloat16, enabled=autocast is not None):
        outputs = backbone(image)
    sum(output.float().square().mean() for output in outputs).backward()
    return list(outputs), [image.grad, *(parameter.grad for parameter in backbone.parameters())]
