"""TransNeXt: aggregated attention, log-spaced position bias, convolutional GLU (Shi, CVPR 2024)."""

from . import ablations
from .attention import AggregatedAttention, LengthScaledAttention, ScaledCosineQuery
from .backbone import TransNeXt
from .conv_glu import ConvGLU
from .position_bias import LogCPB, PositionBias

__all__ = [
    'AggregatedAttention',
    'ConvGLU',
    'LengthScaledAttention',
    'LogCPB',
    'PositionBias',
    'ScaledCosineQuery',
    'TransNeXt',
    'ablations',
]
