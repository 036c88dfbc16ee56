"""Attention mechanisms, one file each; they know nothing of backbones."""

from .aggregated_attention import AggregatedAttention, LengthScaledAttention
from .conv_glu import ConvGLU
from .gaussian_bias import GaussianBias, bias_of_pairs
from .gaussian_relative_attention import GaussianRelPosAttention, GaussianRelPosMlp
from .gpsa import GPSA
from .log_cpb import LogCPB
from .peripheral_attention import DistanceEmbedding, PeripheralAttention
from .position_embedding import PositionEmbedding
from .size_cache import SizeCache

__all__ = [
    'AggregatedAttention',
    'ConvGLU',
    'DistanceEmbedding',
    'GPSA',
    'GaussianBias',
    'GaussianRelPosAttention',
    'GaussianRelPosMlp',
    'LengthScaledAttention',
    'LogCPB',
    'PeripheralAttention',
    'PositionEmbedding',
    'SizeCache',
    'bias_of_pairs',
]
