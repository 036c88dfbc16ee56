"""Attention mechanisms, one file each; they know nothing of backbones."""

from .aggregated_attention import AggregatedAttention, LengthScaledAttention
from .conv_glu import ConvGLU
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
    'LengthScaledAttention',
    'LogCPB',
    'PeripheralAttention',
    'PositionEmbedding',
    'SizeCache',
]
