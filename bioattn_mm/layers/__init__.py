"""Attention mechanisms, one file each; they know nothing of backbones."""

from .aggregated_attention import AggregatedAttention, LengthScaledAttention
from .conv_glu import ConvGLU
from .gpsa import GPSA
from .log_cpb import LogCPB
from .position_embedding import PositionEmbedding
from .size_cache import SizeCache

__all__ = [
    'AggregatedAttention',
    'ConvGLU',
    'GPSA',
    'LengthScaledAttention',
    'LogCPB',
    'PositionEmbedding',
    'SizeCache',
]
