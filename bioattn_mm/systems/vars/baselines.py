"""The baselines of VARS beside softmax attention: Performer, and GFNet's global filter."""

import torch
from torch import Tensor, nn

from ...ops.arguments import full_precision, without_autocast
from ...registry import MODELS
from ..common.attention_maps import AttentionMap, AttentionMaps
from ..common.layout import Grid, head_dims_of, merge_heads, split_heads
from .attention import FourierKernels, RandomFeatures


@MODELS.register_module()
class PerformerAttention(nn.Module):
    """Attention with random features in place of the softmax; its cost is linear in the number of tokens.

    Source: Performer (Choromanski et al., ICLR 2021), eq. 4: `phi(q) (phi(k)^T v)`, divided by `phi(q) (phi(k)^T 1)`,
    in float32 also in half precision. Arguments as `SparseReconstructionAttention`.
    """

    def __init__(self, embed_dims: int, num_heads: int, feature_ratio: float = 2, unit_queries: bool = True) -> None:
        super().__init__()
        head_dims = head_dims_of(embed_dims, num_heads)
        self.num_heads = num_heads
        self.features = RandomFeatures(num_heads, head_dims, int(feature_ratio * head_dims), unit_queries)
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        qkv = self.qkv(x)
        with without_autocast(x):
            query, key, value = split_heads(full_precision(qkv), 3, self.num_heads)
            query, key = self.features(query), self.features(key)
            weighted = query @ (key.transpose(-2, -1) @ value)
            output = weighted / (query @ key.sum(-2).unsqueeze(-1))
        return self.proj(merge_heads(output, x.shape).to(qkv.dtype))

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """The map 'attention' of some queries, whose weights `forward` never has."""
        qkv = self.qkv(x)
        with without_autocast(x):
            query, key, _ = split_heads(full_precision(qkv), 3, self.num_heads)
            weights = self.features(query[:, :, queries]) @ self.features(key).transpose(-2, -1)
            weights = weights / weights.sum(-1, keepdim=True)
        return dict(attention=AttentionMap.of_grid(weights, tuple(x.shape[1:3])))


@MODELS.register_module()
class GlobalFilter(FourierKernels):
    """GFNet's layer: a circular convolution of each channel with a kernel as large as the grid.

    Source: GFNet (Rao et al., NeurIPS 2021), eq. 9. The Fourier transforms are float32 also in half precision.

    Args:
        embed_dims: Width of the tokens.
        grid: Token grid (height, width) of the pre-training, the size of the kernels.
    """

    def __init__(self, embed_dims: int, grid: Grid) -> None:
        super().__init__()
        self.set_grid(grid)
        self.kernel = nn.Parameter(0.02 * torch.randn(embed_dims, *self.half_spectrum))

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        kernel, grid = self._spectrum(full_precision(self.kernel).contiguous(), x.shape[1:3]), x.shape[1:3]
        transform = torch.fft.rfft2(full_precision(x).permute(0, 3, 1, 2)) * kernel
        return torch.fft.irfft2(transform, s=grid).permute(0, 2, 3, 1).to(x.dtype)

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """The map 'attention', a mean over the channels, the same for every image."""
        grid = height, width = tuple(x.shape[1:3])
        kernel = torch.fft.irfft2(self._spectrum(full_precision(self.kernel).contiguous(), grid), s=grid).mean(0)
        rows, columns = (torch.arange(length, device=x.device) for length in grid)
        row = (queries[:, None, None] // width - rows[:, None]) % height
        column = (queries[:, None, None] % width - columns) % width
        weights = kernel[row, column].flatten(1).expand(len(x), 1, -1, -1)
        return dict(attention=AttentionMap.of_grid(weights, grid))
