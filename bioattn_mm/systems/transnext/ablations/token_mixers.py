"""Other attention layers than TransNeXt's own, and other similarities of query and key (tables 2, 5 and 6)."""

import math

import torch
from timm.models import pvt_v2
from torch import Tensor

from ....ops import (
    AggregatedAttentionInputs,
    aggregated_attention,
    log_num_keys,
    sliding_window_av,
    sliding_window_qk,
)
from ....ops.arguments import full_precision, window_size_of
from ....registry import MODELS
from ...common.attention_maps import AttentionMap, AttentionMaps
from ...common.building import replace_by_zeros
from ...common.layout import head_dims_of
from ..attention import AggregatedAttention, ScaledCosineQuery
from ..maps import centres_of_cells, tokens_of_windows


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
