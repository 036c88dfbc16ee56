"""Gated positional self-attention of ConViT, with its positional softmax as a product of two axes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .arguments import channels_of_head, full_precision
from .attention_maps import AttentionMap, AttentionMaps


class GPSA(nn.Module):
    """Gated positional self-attention: each head mixes attention to content with attention to a relative position.

    Source: ConViT (d'Ascoli et al., ICML 2021), eq. 7: `A = (1 - s(g)) softmax(q k^T / sqrt(d)) + s(g) softmax(p)`
    with the sigmoid s, one gate g a head, and `p = w . (dx, dy, dx^2 + dy^2) + b` of the offset (key - query) in
    tokens. Both terms sum to 1, so the normalisation that follows in the paper changes nothing.

    p is a function of dx plus a function of dy, so the exponential, and with it the softmax over all keys, is a
    product: `softmax(p)[(i, j), (u, v)] = rows[i, u] * columns[j, v]`. The positional term is therefore applied as
    two small matrix products, exactly, and no tensor of all pairs of tokens is made.

    Args:
        channels: Input and output channels.
        num_heads: Attention heads.
        locality_strength: Sharpness of the convolutional initialisation (section 3): each of the first K^2 heads,
            K = floor(sqrt(num_heads)), attends to one offset of a K x K window.
    """

    def __init__(self, channels: int, num_heads: int, locality_strength: float = 1.0) -> None:
        super().__init__()
        channels_of_head(channels, num_heads)
        self.num_heads = num_heads
        self.qk = nn.Linear(channels, 2 * channels, bias=False)
        self.v = nn.Linear(channels, channels, bias=False)
        self.pos_proj = nn.Linear(3, num_heads)
        self.gating_param = nn.Parameter(torch.ones(num_heads))
        self.proj = nn.Linear(channels, channels)
        self.locality_strength = locality_strength
        self.init_as_convolution()

    @torch.no_grad()
    def init_as_convolution(self) -> None:
        """Let the heads start as a convolution: values pass unchanged, heads attend to the offsets of a window."""
        nn.init.eye_(self.v.weight)
        kernel_size = int(self.num_heads**0.5)
        centre = (kernel_size - 1) / 2
        for row in range(kernel_size):
            for column in range(kernel_size):
                head = self.pos_proj.weight[row + kernel_size * column]
                # -|offset - (column - centre, row - centre)|^2 without its constant, which the softmax cancels.
                head.copy_(torch.tensor([2 * (column - centre), 2 * (row - centre), -1.0]) * self.locality_strength)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        height, width = x.shape[1:3]
        query, key = self._query_key(x)
        value = self._value(x)
        content = F.scaled_dot_product_attention(query, key, value)  # (B, heads, N, d)
        rows, columns = (weights.to(value.dtype) for weights in self.position_weights((height, width)))
        position = torch.einsum('njv,bnuvd->bnujd', columns, value.unflatten(2, (height, width)))
        position = torch.einsum('niu,bnujd->bnijd', rows, position).flatten(2, 3)
        gate = self.gating_param.sigmoid()[:, None, None].to(value.dtype)
        output = torch.lerp(content, position, gate)
        return self.proj(output.transpose(1, 2).reshape(x.shape))

    def position_weights(self, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """The two factors of the positional softmax on a grid (height, width), in tokens.

        Returns:
            `rows`, (heads, H, H), and `columns`, (heads, W, W), float32 or float64, each summing to 1 over its last
            axis: query (i, j) attends to key (u, v) with `rows[:, i, u] * columns[:, j, v]`.
        """
        weight, bias = self.pos_proj.weight, self.pos_proj.bias
        with torch.autocast(weight.device.type, enabled=False):
            weight, bias = full_precision(weight), full_precision(bias)
            horizontal, vertical, square = weight[:, :, None, None].unbind(1)

            def axis_logits(length: int, slope: Tensor) -> Tensor:
                position = torch.arange(length, device=weight.device, dtype=weight.dtype)
                offset = position - position[:, None]  # key - query
                return slope * offset + square * offset.square()

            # The bias belongs to neither axis and cancels in the softmax; it stays a part of the graph all the same,
            # because a parameter without a gradient stops distributed training.
            rows = axis_logits(grid[0], vertical) + bias[:, None, None]
            return rows.softmax(-1), axis_logits(grid[1], horizontal).softmax(-1)

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """Weights of some queries, for analysis: 'content', 'position' and 'attention', which the gate mixes of both.

        Args:
            x: (B, H, W, C).
            queries: Their places in the row-major order of the grid, int64 (queries,).
        """
        grid = tuple(x.shape[1:3])
        query, key = self._query_key(x)
        content = (query[:, :, queries] @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(-1)
        rows, columns = self.position_weights(grid)
        position = torch.einsum('nqu,nqv->nquv', rows[:, queries // grid[1]], columns[:, queries % grid[1]])
        position = position.flatten(2)[None].to(content.dtype)
        attention = torch.lerp(content, position, self.gating_param.sigmoid()[:, None, None])
        maps = dict(content=content, position=position, attention=attention)
        return {name: AttentionMap.of_grid(weights, grid) for name, weights in maps.items()}

    def head_parameters(self) -> dict[str, list[float]]:
        """The gate of each head, sigmoid(g): the share of position in its attention."""
        return dict(gate=self.gating_param.sigmoid().tolist())

    def _query_key(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, H, W, C) to two of (B, heads, H * W, d)."""
        return self.qk(x).flatten(1, 2).unflatten(-1, (2, self.num_heads, -1)).transpose(1, 3).unbind(2)

    def _value(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, heads, H * W, d)."""
        return self.v(x).flatten(1, 2).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
