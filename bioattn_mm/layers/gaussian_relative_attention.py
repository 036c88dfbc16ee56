"""GAB for plain ViTs: timm's attention, whose position bias is an MLP of the offset, with a Gaussian bias added."""

from functools import partial

from timm.layers import RelPosMlp
from timm.layers.pos_embed_rel import gen_relative_log_coords
from timm.models.vision_transformer_relpos import RelPosAttention
from torch import Tensor

from ..ops import relative_bias_attention
from ..ops.arguments import without_autocast
from ..ops.relative_bias import bias_of_pairs, bias_of_queries
from .attention_maps import AttentionMap, AttentionMaps, maps_of_product
from .gaussian_bias import GaussianBias
from .heads import split_heads


class GaussianRelPosMlp(RelPosMlp):
    """timm's position bias, an MLP of the log-spaced offset, plus `GaussianBias`; for any grid.

    timm's ViTs use the coordinates `sign(x) log(1 + |x|)` of the offset x in patches (timm's mode 'cr'). Unlike Swin
    V2's they do not depend on the size of the pre-training, so they hold for every grid.

    Args:
        num_heads: Number of attention heads.
        sigma: Initial standard deviation of the Gaussian, in patches.
        amplitude: Initial amplitude of the Gaussian.
        gaussian_per_head: Whether each head has a Gaussian.
        **kwargs: Passed to timm's `RelPosMlp`.
    """

    def __init__(
        self,
        num_heads: int,
        sigma: float,
        amplitude: float = 1.0,
        gaussian_per_head: bool = False,
        **kwargs: object,
    ) -> None:
        # timm stores an index of all pairs of tokens of a grid, which is not used here: 1 x 1 keeps it small.
        super().__init__((1, 1), num_heads, mode='cr', **kwargs)
        self.gaussian = GaussianBias(sigma, amplitude, num_heads if gaussian_per_head else None)

    def learned_table(self, grid: tuple[int, int]) -> Tensor:
        """timm's bias of all offsets on a grid (height, width): (heads, 2 H - 1, 2 W - 1)."""
        weight = self.mlp.fc1.weight
        with without_autocast(weight):
            coordinates = gen_relative_log_coords(grid, mode=self.mode, device=weight.device, dtype=weight.dtype)
            return self.mlp(coordinates).permute(2, 0, 1)

    def table(self, grid: tuple[int, int]) -> Tensor:
        """Sum of both biases for all offsets on a grid (height, width): (heads, 2 H - 1, 2 W - 1)."""
        return self.learned_table(grid) + self.gaussian.table(grid)

    def get_bias(self, grid: tuple[int, int]) -> Tensor:
        """Sum of both biases for all pairs of tokens of a grid (height, width): (1, heads, H * W, H * W)."""
        return bias_of_pairs(self.table(grid), grid)[None]


class GaussianRelPosAttention(RelPosAttention):
    """timm's multi-head attention with the bias of `GaussianRelPosMlp`.

    Args:
        embed_dims: Width of the tokens.
        num_heads: Number of attention heads.
        sigma: Initial standard deviation of the Gaussian, in patches.
        amplitude: Initial amplitude of the Gaussian.
        bias_in_kernel: On a GPU, add the bias inside the attention kernel (PyTorch's flex attention, compiled)
            instead of storing it for all pairs of tokens and heads. On a CPU it is never stored.
        gaussian_per_head: Whether each head has a Gaussian.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        sigma: float,
        amplitude: float = 1.0,
        bias_in_kernel: bool = False,
        gaussian_per_head: bool = False,
    ) -> None:
        rel_pos_cls = partial(
            GaussianRelPosMlp, sigma=sigma, amplitude=amplitude, gaussian_per_head=gaussian_per_head
        )
        super().__init__(embed_dims, num_heads, rel_pos_cls=rel_pos_cls)
        self.bias_in_kernel = bias_in_kernel

    def forward(self, x: Tensor, shared_rel_pos: None = None) -> Tensor:
        """(B, H, W, C) to (B, H, W, C); timm's block passes `shared_rel_pos`, which is always None here."""
        query, key, value = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(-3)  # (B, H, W, heads, d)
        table = self.rel_pos.table(tuple(x.shape[1:3]))
        backend = 'flex' if self.bias_in_kernel and x.is_cuda else None
        output = relative_bias_attention(query, key, value, table, self.scale, backend)
        return self.proj(output.flatten(-2))

    def attention_maps(self, x: Tensor, queries: Tensor, shared_rel_pos: None = None) -> AttentionMaps:
        """Weights of some queries, for analysis.

        Args:
            x: (B, H, W, C).
            queries: Their indices in the row-major order of the grid, int64 (queries,).
            shared_rel_pos: As in `forward`.

        Returns:
            'Gaussian', the softmax of the Gaussian bias alone, 'content' and 'position', without and with nothing but
            the whole bias, and 'attention'.
        """
        grid = tuple(x.shape[1:3])
        query, key, _ = split_heads(self.qkv(x), 3, self.num_heads)
        content = query[:, :, queries] @ key.transpose(-2, -1) * self.scale
        gaussian, bias = (
            bias_of_queries(table, grid, queries).to(content.dtype)
            for table in (self.rel_pos.gaussian.table(grid), self.rel_pos.table(grid))
        )
        gaussian = gaussian.softmax(-1)[(None,) * (4 - gaussian.dim())]
        maps = dict(Gaussian=gaussian, **maps_of_product(content, bias))
        return {name: AttentionMap.of_grid(weights, grid) for name, weights in maps.items()}

    def head_parameters(self) -> dict[str, list[float]]:
        """Those of the Gaussian, see `GaussianBias`."""
        return self.rel_pos.gaussian.head_parameters()
