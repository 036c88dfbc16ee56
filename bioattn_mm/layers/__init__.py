"""Attention mechanisms, one file each; they know nothing of backbones."""

from .aggregated_attention import AggregatedAttention, LengthScaledAttention
from .attention_maps import AttentionMap, record_attention
from .conv_glu import ConvGLU
from .gaussian_bias import GaussianBias, bias_of_pairs
from .gaussian_relative_attention import GaussianRelPosAttention, GaussianRelPosMlp
from .gpsa import GPSA
from .log_cpb import LogCPB
from .peripheral_attention import DistanceEmbedding, PeripheralAttention
from .position_embedding import PositionEmbedding
from .size_cache import SizeCache
from .sparse_reconstruction import (
    ConvolutionalSparseReconstruction,
    PerformerAttention,
    SoftmaxAttention,
    SparseReconstructionAttention,
)

__all__ = [
    'AggregatedAttention',
    'AttentionMap',
    'ConvGLU',
    'ConvolutionalSparseReconstruction',
    'DistanceEmbedding',
    'GPSA',
    'GaussianBias',
    'GaussianRelPosAttention',
    'GaussianRelPosMlp',
    'LengthScaledAttention',
    'LogCPB',
    'PerformerAttention',
    'PeripheralAttention',
    'PositionEmbedding',
    'SizeCache',
    'SoftmaxAttention',
    'SparseReconstructionAttention',
    'bias_of_pairs',
    'record_attention',
]
