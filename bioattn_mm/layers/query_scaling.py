"""Other similarities of query and key than TransNeXt's: what ablations leave out.

Each takes the place of `ScaledCosineQuery` in both attention layers, as their argument `scale`.
"""

import math

import torch
from torch import Tensor, nn

from ..ops import AggregatedAttentionInputs, CosineAttentionInputs, aggregated_attention, log_num_keys, unit_vectors
from ..ops.windows import window_size_of
from ..registry import MODELS
from .aggregated_attention import ScaledCosineQuery
from .arguments import full_precision
from .building import replace_by_zeros


@MODELS.register_module()
class CosineQueryWithoutEmbedding(ScaledCosineQuery):
    """Length-scaled cosine similarity without query embedding: `l2norm(q) * softplus(temperature) * log(N)`.

    Source: TransNeXt (Shi, CVPR 2024), table 2, steps 6 and 7: eq. 10 and 12 without QE.
    """

    def __init__(self, num_heads: int, head_dims: int) -> None:
        super().__init__(num_heads, head_dims)
        replace_by_zeros(self, 'query_embedding')


@MODELS.register_module()
class LearnedScaleQuery(ScaledCosineQuery):
    """Cosine similarity with a learned scale, without the length: `(l2norm(q) + QE) * softplus(temperature)`.

    The similarity of Swin Transformer V2. TransNeXt's paper trains no such model: what its table 5 and figure 6 call
    no length scaling is a trained model that keeps the factor log(N) of its training size, `TrainedLengthQuery`.
    Where the scale starts is chosen here: by default where length scaling starts in stage 4 at 224 x 224 pixels, with
    49 keys, and near where it starts in the other stages, with 58. `initial_scale` is the scale of each head before
    training, above 0.
    """

    def __init__(self, num_heads: int, head_dims: int, initial_scale: float = math.log(49) / 0.24) -> None:
        super().__init__(num_heads, head_dims)
        nn.init.constant_(self.temperature, math.log(math.expm1(initial_scale)))

    def forward(self, query: Tensor, log_length: Tensor | float) -> Tensor:
        """As in `ScaledCosineQuery`; the length is not used."""
        return super().forward(query, 1.0)

    def attend(self, projections: dict[str, Tensor]) -> Tensor:
        return aggregated_attention(*self.logit_factors(projections))

    def logit_factors(self, projections: dict[str, Tensor]) -> AggregatedAttentionInputs:
        factors, query = super().logit_factors(projections), projections['query']
        scaled = (unit_vectors(query) + full_precision(self.query_embedding)) * self._scaling()['scale'][:, None]
        return factors._replace(query=scaled.to(query.dtype))


@MODELS.register_module()
class TrainedLengthQuery(ScaledCosineQuery):
    """Length-scaled cosine similarity of a trained model that is not scaled with the length at other sizes.

    Source: TransNeXt (Shi, CVPR 2024), table 5 and figure 6, no length scaling: instead of its own number of keys,
    every query has that of the training size, where nothing changes. Queries at the edge of the image have fewer
    keys in their window, as in training. `num_keys` is the number of pooled keys in training; where tokens attend to
    all tokens, of tokens.
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
class DotProductQuery(nn.Module):
    """Scaled dot products, as in most transformers: `q / sqrt(d)`, and keys as they are.

    TransNeXt's pixel-focused attention before cosines has them (Shi, CVPR 2024, eq. 2), but no row of its tables.
    That there is no query embedding either, which is of the size of a unit vector, and that learnable tokens still
    see queries of unit length, is chosen here.

    Args:
        num_heads: Number of attention heads.
        head_dims: Width of a head.
    """

    def __init__(self, num_heads: int, head_dims: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dims = head_dims

    def forward(self, query: Tensor, log_length: Tensor | float) -> Tensor:
        """Scale queries, (..., heads, d); the length is not used."""
        return query * self.head_dims**-0.5

    def key(self, key: Tensor) -> Tensor:
        """Keys as they are, (..., d)."""
        return key

    def attend(self, projections: dict[str, Tensor]) -> Tensor:
        """As in `ScaledCosineQuery`."""
        return aggregated_attention(*self.logit_factors(projections))

    def logit_factors(self, projections: dict[str, Tensor]) -> AggregatedAttentionInputs:
        """As in `ScaledCosineQuery`."""
        tokens = projections['tokens']
        ones, zeros = tokens.new_ones(self.num_heads), tokens.new_zeros(self.num_heads, self.head_dims)
        factors = CosineAttentionInputs(**projections, scale=ones, query_embedding=zeros).normalised()
        return factors._replace(
            query=self(projections['query'], 0.0),
            key=projections['key_value'].unbind(3)[0],
            pooled_key=projections['pooled_key_value'].unbind(3)[0],
        )
