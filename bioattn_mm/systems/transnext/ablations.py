"""What stands in place of TransNeXt's parts in its ablations (Shi, CVPR 2024, tables 2, 5, 6 and 7).

The hidden width of a channel mixer is `ratio * embed_dims`; that of the gated ones, as of ConvGLU, 2/3 of it, because
they project to twice their hidden width: all have about as many parameters. `embed_dims` is the width of the tokens.
"""

import math

import torch
import torch.nn.functional as F
from timm.layers import GluMlp, Mlp, trunc_normal_
from timm.models import pvt_v2
from torch import Tensor, nn

from ...errors import InputError
from ...ops import AggregatedAttentionInputs, aggregated_attention, log_num_keys, sliding_window_av, sliding_window_qk
from ...ops.arguments import full_precision, window_size_of
from ...ops.constants import cached_constant
from ...registry import MODELS
from ..common.attention_maps import AttentionMap, AttentionMaps
from ..common.building import replace_by_zeros
from ..common.layout import Grid, head_dims_of
from .attention import AggregatedAttention, ScaledCosineQuery
from .conv_glu import ConvGLU
from .maps import centres_of_cells, tokens_of_windows
from .position_bias import LogCPB, PositionBias, offsets_of_grid


@MODELS.register_module()
class CosineQueryWithoutEmbedding(ScaledCosineQuery):
    """Length-scaled cosine similarity without query embedding: `l2norm(q) * softplus(temperature) * log(N)`.

    Source: TransNeXt (Shi, CVPR 2024), table 2, steps 6 and 7: eq. 10 and 12 without QE.
    """

    def __init__(self, num_heads: int, head_dims: int) -> None:
        super().__init__(num_heads, head_dims)
        replace_by_zeros(self, 'query_embedding')


@MODELS.register_module()
class TrainedLengthQuery(ScaledCosineQuery):
    """Length-scaled cosine similarity of a trained model that is not scaled with the length at other sizes.

    Source: TransNeXt (Shi, CVPR 2024), table 5 and figure 6, no length scaling: every query has the number of keys of
    the training size, of which fewer are in its window at the edge of the image, as in training. `num_keys` is the
    number of pooled keys in training; where tokens attend to all tokens, of tokens.
    """

    def __init__(self, num_heads: int, head_dims: int, num_keys: int) -> None:
        super().__init__(num_heads, head_dims)
        self.num_keys = num_keys

    def forward(self, query: Tensor, log_length: Tensor | float) -> Tensor:
        """As in `ScaledCosineQuery`; the length is not used."""
        return super().forward(query, math.log(self.num_keys))

    def attend(self, projections: dict[str, Tensor]) -> Tensor:
        return aggregated_attention(*self.logit_factors(projections))

    def logit_factors(self, projections: dict[str, Tensor]) -> AggregatedAttentionInputs:
        factors, query = super().logit_factors(projections), projections['query']
        window_size = window_size_of(projections['window_bias'].shape[1])
        grid, dtype = tuple(query.shape[1:3]), torch.promote_types(query.dtype, torch.float32)
        log_length = log_num_keys(grid, window_size, self.num_keys, dtype, query.device)
        return factors._replace(query=super().forward(query, log_length).to(query.dtype))


@MODELS.register_module()
class PixelFocusedAttention(AggregatedAttention):
    """Aggregated attention without learnable tokens and, by default, without query embedding.

    Source: TransNeXt (Shi, CVPR 2024), table 2, step 6, before positional attention (the learnable tokens, step 7)
    and query embedding (step 8); with `scale=dict(type='ScaledCosineQuery')` it has the latter. The arguments are
    those of `AggregatedAttention`.
    """

    default_scale = dict(type=CosineQueryWithoutEmbedding)
    left_out = ('learnable_tokens', 'learnable_bias')


@MODELS.register_module()
class DynamicBiasAttention(AggregatedAttention):
    """Aggregated attention whose learnable tokens are the position bias of the window, inside of the softmax.

    Source: TransNeXt (Shi, CVPR 2024), table 6, row 3: `Q T` takes the place of the learned bias of the window, and
    the bias of the tokens, which would be the same, is left out. That nothing is added to the weights after the
    softmax then is chosen here: there is one set of tokens. The arguments are those of `AggregatedAttention`.
    """

    left_out = ('window_bias', 'learnable_bias')

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        window, pooled, inputs = self._weights(x)
        output = sliding_window_av(window, inputs.value)
        output = output + torch.einsum('bhwnp,bpnd->bhwnd', pooled, inputs.pooled_value.flatten(1, 2))
        return self.proj(output.flatten(-2))

    def attention_maps(self, x: Tensor, queries: Tensor) -> AttentionMaps:
        """As in `AggregatedAttention`, without learnable tokens, which are a part of the logits."""
        grid = tuple(x.shape[1:3])
        row, column = queries // grid[1], queries % grid[1]
        rows, columns, _ = tokens_of_windows(row, column, grid, self.window_size)
        window, pooled = (weights[:, row, column].transpose(1, 2) for weights in self._weights(x)[:2])
        pooled_grid = self.pooled_grid(grid)
        return dict(
            window=AttentionMap(window.unflatten(-1, (self.window_size, self.window_size)), rows, columns),
            pooled=AttentionMap(pooled.unflatten(-1, pooled_grid), *centres_of_cells(grid, pooled_grid, x)),
        )

    def _weights(self, x: Tensor) -> tuple[Tensor, Tensor, AggregatedAttentionInputs]:
        """Weights of the window and of the pooled keys, (B, H, W, heads, keys), and what they are made of."""
        inputs = self.scale.logit_factors(self._projections(x))
        window = sliding_window_qk(inputs.query, inputs.key, inputs.window_bias.to(inputs.query.dtype))
        pooled = torch.einsum('bhwnd,bpnd->bhwnp', inputs.query, inputs.pooled_key.flatten(1, 2))
        bias = inputs.pooled_bias[:, inputs.pooled_bias_rows]  # (heads, H, Ph, W, Pw)
        bias = bias.permute(1, 3, 0, 2, 4).flatten(3)
        logits = torch.cat((full_precision(window + inputs.token_weights), full_precision(pooled) + bias), dim=-1)
        weights = logits.softmax(-1).to(inputs.value.dtype)
        return *weights.split([window.shape[-1], pooled.shape[-1]], dim=-1), inputs


@MODELS.register_module()
class SpatialReductionAttention(pvt_v2.Attention):
    """Attention to tokens that a strided convolution makes fewer (SRA), timm's of PVTv2.

    Source: PVTv2 (Wang et al., 2022), which is steps 1 to 5 of TransNeXt's table 2 (Shi, CVPR 2024). `sr_ratio` is
    side and stride of the convolution, which there is above 1.
    """

    def __init__(self, embed_dims: int, num_heads: int, sr_ratio: int) -> None:
        head_dims_of(embed_dims, num_heads)
        super().__init__(embed_dims, num_heads, sr_ratio)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        return super().forward(x.flatten(1, 2), list(x.shape[1:3])).view(x.shape)


@MODELS.register_module()
class MLP(Mlp):
    """The feed-forward network of ViT: `fc2(GELU(fc1(x)))`."""

    def __init__(self, embed_dims: int, ratio: float) -> None:
        super().__init__(embed_dims, int(embed_dims * ratio))


@MODELS.register_module()
class DepthwiseMLP(nn.Module):
    """ConvFFN of PVTv2 (TransNeXt, table 2, steps 1 to 3): `fc2(GELU(DWConv3x3(fc1(x))))`."""

    def __init__(self, embed_dims: int, ratio: float) -> None:
        super().__init__()
        hidden_dims = int(embed_dims * ratio)
        self.fc1 = nn.Linear(embed_dims, hidden_dims)
        self.dwconv = nn.Conv2d(hidden_dims, hidden_dims, 3, padding=1, groups=hidden_dims)
        self.fc2 = nn.Linear(hidden_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        return self.fc2(F.gelu(self.dwconv(self.fc1(x).permute(0, 3, 1, 2))).permute(0, 2, 3, 1))


@MODELS.register_module()
class GLU(GluMlp):
    """Gated linear unit: `fc2(GELU(a) * b)` with `a, b = chunk(fc1(x))`; ConvGLU without its convolution.

    Source: TransNeXt, table 2, step 4, and figure 4; GLU is of Dauphin et al. (ICML 2017).
    """

    def __init__(self, embed_dims: int, ratio: float) -> None:
        hidden_dims = int(2 * int(embed_dims * ratio) / 3)
        super().__init__(embed_dims, 2 * hidden_dims, act_layer=nn.GELU, gate_last=False)


@MODELS.register_module()
class OtherConvGLU(ConvGLU):
    """ConvGLU with its convolution elsewhere, of the same parameters: `fc2` of, with `a, b = chunk(fc1(x))`,

    1. `DWConv3x3(GELU(a)) * b`, after the activation of the gate,
    2. `GELU(a) * DWConv3x3(b)`, in the branch of the values,
    3. `DWConv3x3(GELU(a) * b)`, after both.

    Source: TransNeXt, eq. 20 to 22 and table 7, type 1 to 3: `design`. An `InputError` says that there is no other.
    """

    def __init__(self, embed_dims: int, ratio: float, design: int) -> None:
        super().__init__(embed_dims, ratio)
        if design not in (1, 2, 3):
            raise InputError(f'design must be 1, 2 or 3, got {design!r}')
        self.design = design

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H, W, C)."""
        gate, value = self.fc1(x).permute(0, 3, 1, 2).chunk(2, dim=1)
        if self.design == 1:
            x = self.dwconv(F.gelu(gate)) * value
        elif self.design == 2:
            x = F.gelu(gate) * self.dwconv(value)
        else:
            x = self.dwconv(F.gelu(gate) * value)
        return self.fc2(x.permute(0, 2, 3, 1))


@MODELS.register_module()
class LogCPBOfBothPaths(LogCPB):
    """Log-CPB for the window, too: the MLP of the pooled tokens' bias gives that of the window's tokens.

    Source: TransNeXt (Shi, CVPR 2024), table 6, row 2. That both paths share one MLP follows from the number of
    parameters there, 28.2 M as without this change. It takes the arguments of `LogCPB`.
    """

    def of_window(self, window_size: int) -> Tensor:
        """Bias of the tokens of a window, in row-major order: (heads, k * k)."""
        # A grid as large as half the window has the offsets of the window, in reversed order.
        half = ((window_size + 1) // 2,) * 2
        return self._table(half, half).flatten(1).flip(1)


@MODELS.register_module()
class RelativePositionBias(PositionBias):
    """A learned number for each head and offset of two cells of the pooled grid, resized bilinearly to other grids.

    Source: TransNeXt (Shi, CVPR 2024), table 6, row 4. The offset is that between the cell that the query lies in and
    the pooled token, (2 Ph - 1) (2 Pw - 1) numbers a head: the paper does not say what is learned, but its 28.1 M
    parameters leave room for no more. That other sizes are resized as by 'interpolate' is chosen here. The grids are
    those of the pre-training; both are the same where tokens attend to all tokens.
    """

    def __init__(self, num_heads: int, pretrain_grid: Grid, pretrain_pooled_grid: Grid) -> None:
        super().__init__('interpolate', pretrain_grid, pretrain_pooled_grid)
        numbers = (2 * length - 1 for length in pretrain_pooled_grid)
        self.offsets = nn.Parameter(trunc_normal_(torch.empty(num_heads, *numbers), std=0.02))

    def _table(self, grid: Grid, pooled_grid: Grid) -> Tensor:
        rows, columns = (_cells(*lengths, self.offsets.device) for lengths in zip(grid, pooled_grid))
        return full_precision(self.offsets).index_select(1, rows).index_select(2, columns)


@cached_constant
def _cells(length: int, pooled_length: int, device: torch.device) -> Tensor:
    """How many cells lie between query and pooled token at each offset, counted from the least: int64 (R,)."""
    cell = length / pooled_length
    cells = (offsets_of_grid(length, pooled_length) + (cell - 1) / 2).div(cell).add(1e-9).floor().long()
    return (cells.clamp(1 - pooled_length, pooled_length - 1) + pooled_length - 1).to(device)


@MODELS.register_module()
class NoPositionBias(PositionBias):
    """No bias of pooled tokens and none of the window: what is left of positions is the convolutions' zero padding.

    Source: TransNeXt (Shi, CVPR 2024), table 6, row 1. The learnable tokens stay.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.register_buffer('zero', torch.zeros(num_heads), persistent=False)

    def of_window(self, window_size: int) -> Tensor:
        """As in `LogCPBOfBothPaths`."""
        return self._zeros(window_size**2)

    def _table(self, grid: Grid, pooled_grid: Grid) -> Tensor:
        return self._zeros(*(len(offsets_of_grid(*lengths)) for lengths in zip(grid, pooled_grid)))

    def _zeros(self, *shape: int) -> Tensor:
        zero = full_precision(self.zero)
        return zero.new_zeros(len(zero), *shape)
