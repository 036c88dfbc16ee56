"""Recording what goes into every attention layer of a backbone, of which attention weights are made later.

Backbones of other libraries have no method that returns weights: `other_attention` catches them where their layers
compute them.
"""

import torch
from torch import Tensor, nn

from .attention_maps import Recording
from .grid import Grid
from .other_attention import record_other_attention


@torch.no_grad()
def record_attention(backbone: nn.Module, x: Tensor) -> list[Recording]:
    """Run a backbone, and keep what goes into each of its attention layers.

    A layer takes part in one of two ways:

    - Its backbone has the methods `attention_layers()`, which names it, and `attention_maps(recording, queries)` and
      `head_parameters(layer)`, which by default are those of the layer; see `models.backbones.Backbone`.
    - Of all other backbones, each layer does whose forward has one softmax over keys: as
      `F.scaled_dot_product_attention`, as a softmax of (B, heads, N, N), or in `nn.MultiheadAttention`. Its tokens
      are those of a grid, behind a class token or other ones, or those of windows, whose size an attribute
      `window_size` of the layer, or of one that it is in, says. So do those of ViT, DeiT, BEiT and Swin in timm,
      mmpretrain, mmdet and mmseg. A layer with another kind of keys is left out.

    Args:
        backbone: In eval mode. One that gives feature maps, (B, C, H, W) each.
        x: Its input, (B, 3, H, W).

    Returns:
        One recording for each attention layer, in the order in which they ran; none for a backbone without attention.
    """
    if not hasattr(backbone, 'attention_layers'):
        return record_other_attention(backbone, x)
    inputs = []
    names = {layer: name for name, layer in backbone.attention_layers().items()}

    def keep(layer: nn.Module, positional: tuple, keywords: dict) -> None:
        inputs.append((layer, positional, keywords))

    handles = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in names]
    try:
        outputs = backbone(x)
    finally:
        for handle in handles:
            handle.remove()
    grids = [tuple(output.shape[2:]) for output in outputs if output.dim() == 4]
    if not grids:  # the outputs of a classifier have none
        grids = [tuple(grid) for _, grid in backbone.iterate_stages(x)]
    return [
        Recording(names[layer], layer, positional, keywords, _grid_of(positional, grids), backbone)
        for layer, positional, keywords in inputs
    ]


def _grid_of(inputs: tuple, grids: list[Grid]) -> Grid:
    """Grid of a layer's tokens: the input's own, the one that follows it, or one of `grids` with as many tokens."""
    x = inputs[0]
    if x.dim() == 4:
        return tuple(x.shape[1:3])
    if len(inputs) > 1:
        return tuple(inputs[1])
    # Tokens are one more than those of a grid where there is a class token.
    return next(grid for grid in grids if grid[0] * grid[1] == x.shape[1] - 1)
