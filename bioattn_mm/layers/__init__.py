"""The attention layers of each system and their parts. Layers know nothing of backbones.

An attention layer takes the tokens of any grid (H, W) as (B, H, W, C). One is not here: GAB's attention for Swin is
imported from `.gaussian_window_attention`, because it extends mmpretrain, whose import takes seconds.
"""

from ..ops.relative_bias import bias_of_pairs
from .aggregated_attention import AggregatedAttention, LengthScaledAttention, ScaledCosineQuery
from .attention_maps import AttentionMap
from .baseline_attention import GlobalFilter, PerformerAttention, SoftmaxAttention
from .building import build_layer, one_for_each, replace_by_zeros, takes
from .channel_mixers import GLU, MLP, SEMLP, DepthwiseMLP, OtherConvGLU
from .conv_glu import ConvGLU
from .gaussian_bias import GaussianBias
from .gaussian_relative_attention import GaussianRelPosAttention, GaussianRelPosMlp
from .gpsa import GPSA, FrozenGPSA, UngatedGPSA
from .log_cpb import LogCPB, PositionBias
from .peripheral_attention import DistanceEmbedding, PeripheralAttention, PeripheralPosition
from .peripheral_variants import (
    ContentAttention,
    PositionAttention,
    VariedPosition,
    VectorDistance,
)
from .position_bias import LinearCPB, LogCPBOfBothPaths, NoPositionBias, RelativePositionBias
from .position_embedding import PositionEmbedding
from .query_scaling import CosineQueryWithoutEmbedding, DotProductQuery, LearnedScaleQuery, TrainedLengthQuery
from .recording import record_attention
from .size_cache import SizeCache
from .sparse_reconstruction import (
    ConvolutionalSparseReconstruction,
    IstaReconstructionAttention,
    SparseReconstructionAttention,
)
from .token_mixers import (
    DynamicBiasAttention,
    PixelFocusedAttention,
    PooledAttention,
    SlidingWindowAttention,
    SpatialReductionAttention,
)

__all__ = [
    # TransNeXt: attention of stages 1-3 and of stage 4, position bias of both, feed-forward network
    'AggregatedAttention',
    'LengthScaledAttention',
    'LogCPB',
    'ConvGLU',
    'PositionBias',
    'ScaledCosineQuery',
    # ablations of TransNeXt: token mixers, similarities of query and key, position biases, channel mixers
    'PixelFocusedAttention',
    'DynamicBiasAttention',
    'SpatialReductionAttention',
    'PooledAttention',
    'SlidingWindowAttention',
    'CosineQueryWithoutEmbedding',
    'LearnedScaleQuery',
    'TrainedLengthQuery',
    'DotProductQuery',
    'LinearCPB',
    'LogCPBOfBothPaths',
    'RelativePositionBias',
    'NoPositionBias',
    'MLP',
    'DepthwiseMLP',
    'SEMLP',
    'GLU',
    'OtherConvGLU',
    # ConViT
    'GPSA',
    # its ablations
    'UngatedGPSA',
    'FrozenGPSA',
    # PerViT: attention, its position-based part, the embedding of distances that all its layers share, and what its
    # ablations put in place of each
    'PeripheralAttention',
    'PositionAttention',
    'ContentAttention',
    'PeripheralPosition',
    'VariedPosition',
    'DistanceEmbedding',
    'VectorDistance',
    # GAB: bias, and timm's attention and position bias with it
    'GaussianBias',
    'GaussianRelPosAttention',
    'GaussianRelPosMlp',
    'bias_of_pairs',
    # VARS: VARS-D and VARS-SD, these with nothing learned in the recurrence, VARS-S, and the baselines of its paper
    'SparseReconstructionAttention',
    'IstaReconstructionAttention',
    'ConvolutionalSparseReconstruction',
    'PerformerAttention',
    'SoftmaxAttention',
    'GlobalFilter',
    # all systems
    'build_layer',
    'one_for_each',
    'takes',
    'replace_by_zeros',
    'PositionEmbedding',
    'SizeCache',
    'AttentionMap',
    'record_attention',
]
