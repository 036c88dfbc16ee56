"""Gated positional self-attention of ConViT, its positional softmax factorised into rows and columns."""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...ops.arguments import full_precision, without_autocast
from ...ops.constants import cached_constant
from ...registry import MODELS
from ..common.attention_maps import AttentionMap, AttentionMaps
from ..common.building import replace_by_zeros
from ..common.hooks import Layers, stacked_parameters, weight_and_bias
from ..common.layout import Grid, head_dims_of, split_heads
from ..common.size_cache import SizeCache, SizeCaching


@MODELS.register_module()
class GPSA(SizeCaching):
    """Gated positional self-attention: each head mixes attention to content with attention to a relative position.

    Source: ConViT (d'Ascoli et al., ICML 2021), eq. 7: `A = (1 - s(g)) softmax(q k^T / sqrt(d)) + s(g) softmax(p)`
    with the sigmoid s, a gate g for each head, and `p = w . (dx, dy, dx^2 + dy^2) + b` of the offset (key - query)
    in tokens. Both terms sum to 1, so the paper's final normalisation changes nothing and is left out.

    p is a function of dx plus a function of dy, so its softmax over all keys is exactly a product,
    `softmax(p)[(i, j), (u, v)] = rows[i, u] * columns[j, v]`: two small matrix products apply it, without a tensor of
    all pairs of tokens.

    Args:
        embed_dims: Width of the tokens.
        num_heads: Number of attention heads.
        locality_strength: Sharpness of the convolutional initialisation (section 3): each of the first K^2 heads,
            K = floor(sqrt(num_heads)), attends to one offset of a K x K window. None leaves random values, without
            convolutional initialisation (table 3, rows c, d and g).
    """

    # Parameters that an ablation is without.
    left_out: tuple[str, ...] = ()

    def __init__(self, embed_dims: int, num_heads: int, locality_strength: float | None = 1.0) -> None:
        super().__init__()
        head_dims_of(embed_dims, num_heads)
        self.num_heads = num_heads
        self.qk = nn.Linear(embed_dims, 2 * embed_dims, bias=False)
        self.v = nn.Linear(embed_dims, embed_dims, bias=False)
        self.pos_proj = nn.Linear(3, num_heads)
        self.gating_param = nn.Parameter(torch.ones(num_heads))
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.locality_strength = locality_strength
        self._position_weights = SizeCache()
        if locality_strength is not None:
            self.init_as_convolution()
        replace_by_zeros(self, *self.left_out)

    @torch.no_grad()
    def init_as_convolution(self) -> None:
        """Initialise as a convolution: values pass unchanged, each head attends to one offset of a window."""
        nn.init.eye_(self.v.weight)
        kernel_size = int(self.num_heads**0.5)
        centre = (kernel_size - 1) / 2
        for row in range(kernel_size):
            for column in range(kernel_size):
                head = self.pos_proj.weight[row + kernel_size * column]
                # -|offset - (column - centre, row - centre)|^2 without its constant, which the softmax cancels.
                head.copy_(torch.tensor([2 * (column - centre), 2 * (row - centre), -1.0]) * self.locality_strength)

    def forward(self, x: Tensor, *computed: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C); `computed` is of `computed_together`, if that was called."""
        grid = x.shape[1:3]
        if computed:
            weight, rows, columns, share = computed
            query, key, value = split_heads(F.linear(x, weight), 3, self.num_heads)
        else:
            query, key = split_heads(self.qk(x), 2, self.num_heads)
            (value,) = split_heads(self.v(x), 1, self.num_heads)
            rows, columns, share = gated(*self.position_weights(grid), self.gating_param)
        content = F.scaled_dot_product_attention(query, key, value)  # (B, heads, N, d)
        # One product over the columns and one over the rows, of the images and the other axis side by side.
        position = value.unflatten(2, grid).permute(1, 3, 0, 2, 4)  # (heads, W, B, H, d)
        sizes = position.shape
        position = (columns.to(value.dtype) @ position.flatten(2)).view(sizes).transpose(1, 3)  # (heads, H, B, W, d)
        sizes = position.shape
        position = (rows.to(value.dtype) @ position.flatten(2)).view(sizes)
        position = position.permute(2, 1, 3, 0, 4)  # (B, H, W, heads, d)
        content = content.transpose(1, 2).unflatten(1, grid)
        return self.proj(torch.addcmul(position, content, share.to(value.dtype)).flatten(3))

    def position_weights(self, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """The factors `rows`, (heads, H, H), and `columns`, (heads, W, W), of the positional softmax on a grid.

        They are float32 or float64, and each sums to 1 over its last axis. In eval mode they are cached.
        """
        linear = self.pos_proj
        return self._position_weights.get(linear, grid, lambda: position_softmax(*weight_and_bias(linear), grid))

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """The maps 'content', 'position' and what the gate mixes, 'attention' (see `common.attention_maps`)."""
        grid = tuple(x.shape[1:3])
        query, key = split_heads(self.qk(x), 2, self.num_heads)
        content = (query[:, :, queries] @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
        rows, columns = self.position_weights(grid)
        position = torch.einsum('nqu,nqv->nquv', rows[:, queries // grid[1]], columns[:, queries % grid[1]])
        position = position.flatten(2)[None].to(content.dtype)
        gate = self.gating_param.sigmoid()[:, None, None].to(content.dtype)
        maps = dict(content=content, position=position, attention=torch.lerp(content, position, gate))
        return {name: AttentionMap.of_grid(weights, grid) for name, weights in maps.items()}

    def head_parameters(self) -> dict[str, list[float]]:
        """The gate of each head, sigmoid(g): the share of position in its attention."""
        return dict(gate=self.gating_param.sigmoid().tolist())


def gated(rows: Tensor, columns: Tensor, gate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`GPSA.position_weights`, the rows multiplied by s(g), and 1 - s(g), (..., heads, 1), of gates (..., heads)."""
    share = gate.sigmoid()[..., None]
    return share[..., None] * rows, columns, 1 - share


def position_softmax(weight: Tensor, bias: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """`GPSA.position_weights` of weights (..., heads, 3) and biases (..., heads)."""
    with without_autocast(weight):
        horizontal, vertical, square = weight[..., None, None].unbind(-3)
        dy, dx = (offsets(length, weight.dtype, weight.device) for length in grid)
        # The softmax cancels the bias. It is added all the same, because DistributedDataParallel fails if a parameter
        # gets no gradient.
        rows = dy * torch.addcmul(vertical, square, dy) + bias[..., None, None]
        columns = dx * torch.addcmul(horizontal, square, dx)
        return rows.softmax(-1), columns.softmax(-1)


OF_ATTENTION: Layers = [
    ((), GPSA, ('gating_param',)),
    (('pos_proj',), nn.Linear, ('weight', 'bias')),
    (('qk',), nn.Linear, ('weight',)),
    (('v',), nn.Linear, ('weight',)),
]


def computed_together(blocks: Sequence[nn.Module], grid: Grid, dtype: torch.dtype) -> Iterable[tuple[Tensor, ...]]:
    """What `forward` of the `attn` of each block takes: one weight of all projections, and those of `gated`."""
    stacked = stacked_parameters([block.attn for block in blocks], OF_ATTENTION, *blocks)
    if stacked is None:
        return [()] * len(blocks)
    gate, weight, bias, qk, v = stacked
    position = gated(*position_softmax(full_precision(weight), full_precision(bias), grid), gate)
    return zip(*(each.to(dtype).unbind() for each in (torch.cat((qk, v), 1), *position)))


@cached_constant
def offsets(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Offsets (key - query) of all pairs of positions on an axis: (length, length)."""
    position = torch.arange(length, dtype=dtype, device=device)
    return position - position[:, None]


@MODELS.register_module()
class UngatedGPSA(GPSA):
    """GPSA whose gates are frozen at 0: content and position have the same share, `sigmoid(0) = 1/2`, in every head.

    Source: ConViT (d'Ascoli et al., ICML 2021), table 3, rows b and d, and footnote 4. Arguments: as in `GPSA`.
    """

    left_out = ('gating_param',)


@MODELS.register_module()
class FrozenGPSA(UngatedGPSA):
    """GPSA that keeps its initial values: a random 'convolution', or random attention with `locality_strength=None`.

    Source: ConViT (d'Ascoli et al., ICML 2021), table 3, rows f and g: of these blocks only the feed-forward networks
    are trained, here with the blocks' norms; the gates are 0 as in rows b and d. Arguments: as in `GPSA`.
    """

    def __init__(self, embed_dims: int, num_heads: int, locality_strength: float | None = 1.0) -> None:
        super().__init__(embed_dims, num_heads, locality_strength)
        self.requires_grad_(False)
