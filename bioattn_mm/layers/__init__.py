"""The attention layers of each system and their parts. Layers know nothing of backbones.

An attention layer takes the tokens of any grid (H, W) as (B, H, W, C). One is not here: GAB's attention for Swin is
imported from `.gaussian_window_attention`, because it extends mmpretrain, whose import takes seconds.
"""

from ..ops.relative_bias import bias_of_pairs
from .aggregated_attention import AggregatedAttention, LengthScaledAttention
from .attention_maps import AttentionMap, record_attention
from .baseline_attention import GlobalFilter, PerformerAttention, SoftmaxAttention
from .conv_glu import ConvGLU
from .gaussian_bias import GaussianBias
from .gaussian_relative_attention import GaussianRelPosAttention, GaussianRelPosMlp
from .gpsa import GPSA
from .log_cpb import LogCPB
from .peripheral_attention import DistanceEmbedding, PeripheralAttention
from .position_embedding import PositionEmbedding
from .size_cache import SizeCache
from .sparse_reconstruction import ConvolutionalSparseReconstruction, SparseReconstructionAttention

__all__ = [
    # TransNeXt: attention of stages 1-3 and of stage 4, position bias of both, feed-forward network
    'AggregatedAttention',
    'LengthScaledAttention',
    'LogCPB',
    'ConvGLU',
    # ConViT
    'GPSA',
    # PerViT: attention, and the embedding of distances that all its layers share
    'PeripheralAttention',
    'DistanceEmbedding',
    # GAB: bias, and timm's attention and position bias with it
    'GaussianBias',
    'GaussianRelPosAttention',
    'GaussianRelPosMlp',
    'bias_of_pairs',
    # VARS: VARS-D and VARS-SD, VARS-S, and the baselines of its paper
    'SparseReconstructionAttention',
    'ConvolutionalSparseReconstruction',
    'PerformerAttention',
    'SoftmaxAttention',
    'GlobalFilter',
    # all systems
    'PositionEmbedding',
    'SizeCache',
    'AttentionMap',
    'record_attention',
]
