"""Attention mechanisms, one file each; they know nothing of backbones."""

from .aggregated_attention import AggregatedAttention, LengthScaledAttention
from .conv_glu import ConvGLU
from .log_cpb import LogCPB
from .size_cache import SizeCache

__all__ = ['AggregatedAttention', 'ConvGLU', 'LengthScaledAttention', 'LogCPB', 'SizeCache']
