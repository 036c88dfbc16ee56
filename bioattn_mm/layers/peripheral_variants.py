"""What PerViT's ablations put in place of its peripheral attention, of Phi_p, and of the distances."""

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from ..errors import InputError
from ..ops.chunked_attention import attention_in_chunks
from ..ops.peripheral_attention import without_maximum
from ..registry import MODELS
from .arguments import weight_and_bias
from .attention_maps import AttentionMaps, Grid
from .baseline_attention import SoftmaxAttention
from .heads import split_heads
from .peripheral_attention import (
    HIDDEN_RATIO,
    KEY_MARGIN,
    PRETRAIN_GRID,
    PeripheralAttention,
    norm_of_windows,
)
from .resizing import resize_bicubic


@MODELS.register_module()
class PositionAttention(PeripheralAttention):
    """Attention by position alone, `A = normalize(Phi_p)`: the same weights for every image.

    Source: PerViT (Min et al., NeurIPS 2022), table 1, 'Phi_p' without 'Phi_c'. Queries and keys, which nothing would
    depend on, are not built; the paper does not say whether its own have them.

    Args:
        embed_dims: As in `PeripheralAttention`; so are the others.
        num_heads: See there.
        cache_bytes: See there.
        position: See there.
        qkv_bias: Bias of the values.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        cache_bytes: int = 2**29,
        position: dict | None = None,
        qkv_bias: bool = False,
    ) -> None:
        super().__init__(embed_dims, num_heads, cache_bytes, position, qkv_bias)
        del self.qkv
        self.v = nn.Linear(embed_dims, embed_dims, bias=qkv_bias)

    def _query_key_value(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, H, W, C) to three of (B, heads, H * W, d); queries of 0 find all keys alike."""
        (value,) = split_heads(self.v(x), 1, self.num_heads)
        zeros = torch.zeros_like(value)
        return zeros, zeros, value


@MODELS.register_module()
class ContentAttention(SoftmaxAttention):
    """Attention by content alone, `A = normalize(Phi_c)`: self-attention, in a block that has distances, too.

    Source: PerViT (Min et al., NeurIPS 2022), table 1, 'Phi_c' without 'Phi_p'.

    Args:
        embed_dims: Width of the tokens.
        num_heads: Number of attention heads.
        qkv_bias: Biases of queries, keys and values; PerViT has none.
    """

    def __init__(self, embed_dims: int, num_heads: int, qkv_bias: bool = False) -> None:
        super().__init__(embed_dims, num_heads, qkv_bias)

    def forward(self, x: Tensor, distance_embedding: nn.Module) -> Tensor:
        """(B, H, W, C) to (B, H, W, C); the distances are not used."""
        return super().forward(x)

    def attention_maps(self, x: Tensor, distance_embedding: nn.Module, queries: Tensor) -> AttentionMaps:
        return super().attention_maps(x, queries)


@MODELS.register_module()
class OffsetEmbedding(nn.Module):
    """R as a learned vector for each offset between query and key, instead of a map of their distance.

    Source: PerViT (Min et al., NeurIPS 2022), table 5, learned vectors in place of the Euclidean distance. The paper
    does not define them further. They start as random values here, as relative position embeddings do, so Phi_p does
    not start as a function of the distance; on other grids than that of the pre-training the table of offsets is
    resized (bicubic).

    Args:
        num_heads: Number of attention heads; R has 4 channels for each.
        grid: Token grid (height, width) of the pre-training.
    """

    def __init__(self, num_heads: int, grid: Grid = PRETRAIN_GRID) -> None:
        super().__init__()
        self.grid = tuple(grid)
        self.weight = nn.Parameter(
            trunc_normal_(torch.empty(*_offsets_with_margin(self.grid), HIDDEN_RATIO * num_heads), std=0.02)
        )

    def forward(self, grid: Grid) -> Tensor:
        """R of all offsets on a grid (height, width): float32 or float64, (channels, 2 H + 3, 2 W + 3)."""
        weight = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))
        if tuple(grid) != self.grid:
            with torch.autocast(weight.device.type, enabled=False):
                weight = resize_bicubic(weight, _offsets_with_margin(grid))
        return weight.permute(2, 0, 1).contiguous()

    def init_as_decreasing(self) -> None:
        """Nothing: a learned vector does not know the distance."""


class _PositionOfPlane(nn.Module):
    """Base of position-based attentions whose logit for a query and a key is read off a plane of offsets.

    A subclass computes in `hidden_plane` what does not depend on the query, and in `log_phi` the rest. Attention is
    computed for some rows of queries at a time, and again in the backward pass, so that memory is bounded on a CPU.
    """

    def forward(self, hidden: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        """As `PeripheralPosition.forward`."""
        return without_maximum(self.log_phi(hidden, rows, columns))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, hidden: tuple[Tensor, ...]) -> Tensor:
        """As `PeripheralPosition.attend`."""
        grid = tuple((length + 1) // 2 for length in hidden[0].shape[1:])
        query, key, value = (tensor.transpose(1, 2).unflatten(1, grid) for tensor in (query, key, value))

        def bias_of_rows(rows: slice) -> Tensor:
            return self(hidden, rows, slice(0, grid[1]))

        output = attention_in_chunks(query, key, value, bias_of_rows, query.shape[-1] ** -0.5)
        return output.flatten(1, 2).transpose(1, 2)


@MODELS.register_module()
class SingleLayerPosition(_PositionOfPlane):
    """Phi_p of a single layer, `sigmoid(IN(conv(R)))`: one 3 x 3 convolution, without a hidden layer.

    Source: PerViT (Min et al., NeurIPS 2022), table 5, a single layer instead of two. The paper does not say which of
    its two it leaves out; here it is the hidden one, with its norm and ReLU, so that the second norm, whose initial
    values make Phi_p local or global (eq. 9), stays.

    Args:
        num_heads: Number of attention heads; R has 4 channels for each.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(HIDDEN_RATIO * num_heads, num_heads, 3)
        self.norm = nn.GroupNorm(num_heads, num_heads)

    @torch.no_grad()
    def init_as_local(self, norm_weight: float, norm_bias: float) -> None:
        """As `PeripheralPosition.init_as_local`."""
        nn.init.constant_(self.conv.weight, 0.02)
        nn.init.constant_(self.norm.weight, norm_weight)
        nn.init.constant_(self.norm.bias, norm_bias)

    def hidden_plane(self, distances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The convolution for all offsets, (heads, 2 H - 1, 2 W - 1), and its norm for all queries.

        Args:
            distances: R, (channels, 2 H + 3, 2 W + 3).
        """
        weight, bias = weight_and_bias(self.conv)
        with torch.autocast(distances.device.type, enabled=False):
            # One convolution needs one offset less on every side than two.
            plane = F.conv2d(distances[:, 1:-1, 1:-1], weight, bias)
            window = tuple(length // 2 + 1 for length in plane.shape[1:])
            return plane, *norm_of_windows(plane, window, self.norm)

    def log_phi(self, hidden: tuple[Tensor, Tensor, Tensor], rows: slice, columns: slice) -> Tensor:
        """As `PeripheralPosition.log_phi`."""
        plane, scale, shift = hidden
        height, width = scale.shape[1:]
        # They are in the reverse order of the queries, as the windows of a plane of offsets (key - query) are.
        scale, shift = (t.flip(1, 2)[:, rows, columns].flatten(1)[..., None] for t in (scale, shift))
        return F.logsigmoid(scale * _windows(plane, rows, columns) + shift)


@MODELS.register_module()
class UnnormalizedPosition(_PositionOfPlane):
    """Phi_p without instance norms, `sigmoid(conv(ReLU(conv(R))))`, a function of the offset alone.

    Source: PerViT (Min et al., NeurIPS 2022), table 5, without the norm. The initial values of eq. 9 are those of the
    second norm, and with a constant weight of the first convolution nothing would pass the ReLU: without norms Phi_p
    starts with PyTorch's values (`position_init='random'`).

    Args:
        num_heads: Number of attention heads; the hidden layer has 4 channels for each.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        hidden_channels = HIDDEN_RATIO * num_heads
        self.conv1 = nn.Conv2d(hidden_channels, hidden_channels, 3)
        self.conv2 = nn.Conv2d(hidden_channels, num_heads, 3)

    def init_as_local(self, norm_weight: float, norm_bias: float) -> None:
        raise InputError("UnnormalizedPosition has no norms to initialise; it needs position_init='random'")

    def hidden_plane(self, distances: Tensor) -> tuple[Tensor]:
        """Both convolutions for all offsets: (heads, 2 H - 1, 2 W - 1).

        Args:
            distances: R, (channels, 2 H + 3, 2 W + 3).
        """
        (weight1, bias1), (weight2, bias2) = weight_and_bias(self.conv1), weight_and_bias(self.conv2)
        with torch.autocast(distances.device.type, enabled=False):
            return (F.conv2d(F.conv2d(distances, weight1, bias1).relu(), weight2, bias2),)

    def log_phi(self, hidden: tuple[Tensor], rows: slice, columns: slice) -> Tensor:
        """As `PeripheralPosition.log_phi`."""
        return F.logsigmoid(_windows(hidden[0], rows, columns))


def _offsets_with_margin(grid: Grid) -> tuple[int, int]:
    """Number of offsets along each axis between a query on a grid and a key up to 2 tokens outside of it."""
    return tuple(2 * (length + KEY_MARGIN) - 1 for length in grid)


def _windows(plane: Tensor, rows: slice, columns: slice) -> Tensor:
    """Values of a plane of offsets (key - query) at all keys of some queries.

    Args:
        plane: (heads, 2 H - 1, 2 W - 1).
        rows: Rows of the queries; start and stop have to be given.
        columns: Columns of the queries, the same.

    Returns:
        (heads, queries, H * W).
    """
    height, width = ((length + 1) // 2 for length in plane.shape[1:])
    # The window of a query in row i starts at row H - 1 - i: windows are in the reverse order of queries.
    plane = plane[
        :, height - rows.stop : 2 * height - 1 - rows.start, width - columns.stop : 2 * width - 1 - columns.start
    ]
    windows = plane.unfold(1, height, 1).unfold(2, width, 1)  # (heads, rows, columns, H, W)
    return windows.flip(1, 2).flatten(1, 2).flatten(2)
