"""The baselines of VARS: softmax attention, Performer attention with its random features, GFNet's global filter."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.arguments import without_autocast
from ..registry import MODELS
from .arguments import full_precision, head_dims_of
from .attention_maps import AttentionMap, AttentionMaps
from .fourier import FourierKernels, circular_convolution
from .grid import Grid
from .heads import merge_heads, split_heads


class RandomFeatures(nn.Module):
    """Positive random features of the softmax kernel: `E[phi(x) . phi(y)] = exp(x . y)` for unit vectors x and y.

    Source: Performer (Choromanski et al., ICLR 2021), lemma 1: `phi(x) = exp(W x - |x|^2 / 2) / sqrt(m)` with a fixed
    random matrix W. As in the release of VARS, x is normalised to unit length first.

    Args:
        num_heads: Number of attention heads.
        head_dims: Width of a head.
        num_features: Number of features of each head, m.
    """

    def __init__(self, num_heads: int, head_dims: int, num_features: int) -> None:
        super().__init__()
        self.register_buffer('projection', torch.randn(num_heads, head_dims, num_features))

    def forward(self, x: Tensor) -> Tensor:
        """Features of queries or keys: (B, heads, N, d), float32 or float64, to (B, heads, N, m)."""
        num_features = self.projection.shape[-1]
        logits = F.normalize(x, dim=-1) @ self.projection.to(x.dtype) - 0.5
        return logits.exp() * num_features**-0.5


@MODELS.register_module()
class SoftmaxAttention(nn.Module):
    """Multi-head self-attention.

    Args:
        embed_dims: Width of the tokens.
        num_heads: Number of attention heads.
        qkv_bias: Biases of queries, keys and values.
    """

    def __init__(self, embed_dims: int, num_heads: int, qkv_bias: bool = True) -> None:
        super().__init__()
        head_dims_of(embed_dims, num_heads)
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims, bias=qkv_bias)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        query, key, value = split_heads(self.qkv(x), 3, self.num_heads)
        return self.proj(merge_heads(F.scaled_dot_product_attention(query, key, value), x.shape))

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """The map 'attention' of some queries (see `layers.attention_maps`)."""
        query, key, _ = split_heads(self.qkv(x), 3, self.num_heads)
        weights = (query[:, :, queries] @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(-1)
        return dict(attention=AttentionMap.of_grid(weights, tuple(x.shape[1:3])))


@MODELS.register_module()
class PerformerAttention(nn.Module):
    """Attention with random features in place of the softmax; its cost is linear in the number of tokens.

    Source: Performer (Choromanski et al., ICLR 2021), eq. 4: `phi(q) (phi(k)^T v)`, divided by `phi(q) (phi(k)^T 1)`.
    Features and sums over tokens are computed in float32 also when the model runs in half precision.

    Args:
        embed_dims: Width of the tokens.
        num_heads: Number of attention heads.
        feature_ratio: Number of random features, relative to the width of a head.
    """

    def __init__(self, embed_dims: int, num_heads: int, feature_ratio: float = 2) -> None:
        super().__init__()
        head_dims = head_dims_of(embed_dims, num_heads)
        self.num_heads = num_heads
        self.features = RandomFeatures(num_heads, head_dims, int(feature_ratio * head_dims))
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
        """The map 'attention' of some queries, whose weights `forward` never has (see `layers.attention_maps`)."""
        qkv = self.qkv(x)
        with without_autocast(x):
            query, key, _ = split_heads(full_precision(qkv), 3, self.num_heads)
            weights = self.features(query[:, :, queries]) @ self.features(key).transpose(-2, -1)
            weights = weights / weights.sum(-1, keepdim=True)
        return dict(attention=AttentionMap.of_grid(weights, tuple(x.shape[1:3])))


@MODELS.register_module()
class GlobalFilter(FourierKernels):
    """GFNet's layer: a circular convolution of each channel with a kernel as large as the grid.

    Source: GFNet (Rao et al., NeurIPS 2021), eq. 9. The Fourier transforms are float32 also when the model runs in
    half precision.

    Args:
        embed_dims: Width of the tokens.
        grid: As in `FourierKernels`.
    """

    def __init__(self, embed_dims: int, grid: Grid) -> None:
        super().__init__(grid)
        self.kernel = nn.Parameter(0.02 * torch.randn(embed_dims, *self.half_spectrum))

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        with without_autocast(x):
            tokens = full_precision(x).permute(0, 3, 1, 2)
            output = circular_convolution(tokens, self._spectrum(self.kernel, tuple(x.shape[1:3]), tokens.dtype))
        return output.permute(0, 2, 3, 1).to(x.dtype)

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """The map 'attention', a mean over the channels, the same for every image (see `layers.attention_maps`)."""
        grid = height, width = tuple(x.shape[1:3])
        kernel = torch.fft.irfft2(self._spectrum(self.kernel, grid, full_precision(x).dtype), s=grid).mean(0)
        rows, columns = (torch.arange(length, device=x.device) for length in grid)
        row = (queries[:, None, None] // width - rows[:, None]) % height
        column = (queries[:, None, None] % width - columns) % width
        weights = kernel[row, column].flatten(1).expand(len(x), 1, -1, -1)
        return dict(attention=AttentionMap.of_grid(weights, grid))
