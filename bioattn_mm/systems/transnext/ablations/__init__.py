"""What stands in place of TransNeXt's parts in its ablations."""

from .channel_mixers import GLU, MLP, DepthwiseMLP, OtherConvGLU
from .position_biases import LogCPBOfBothPaths, NoPositionBias, RelativePositionBias
from .token_mixers import (
    CosineQueryWithoutEmbedding,
    DynamicBiasAttention,
    PixelFocusedAttention,
    SpatialReductionAttention,
    TrainedLengthQuery,
)

__all__ = [
    'CosineQueryWithoutEmbedding',
    'DepthwiseMLP',
    'DynamicBiasAttention',
    'GLU',
    'LogCPBOfBothPaths',
    'MLP',
    'NoPositionBias',
    'OtherConvGLU',
    'PixelFocusedAttention',
    'RelativePositionBias',
    'SpatialReductionAttention',
    'TrainedLengthQuery',
]
