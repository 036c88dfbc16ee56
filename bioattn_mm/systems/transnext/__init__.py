"""TransNeXt: aggregated attention, log-spaced position bias, convolutional GLU (Shi, CVPR 2024)."""

from . import ablations as ablations
from .attention import AggregatedAttention as AggregatedAttention
from .attention import LengthScaledAttention as LengthScaledAttention
from .attention import ScaledCosineQuery as ScaledCosineQuery
from .backbone import TransNeXt as TransNeXt
from .conv_glu import ConvGLU as ConvGLU
from .position_bias import LogCPB as LogCPB
from .position_bias import PositionBias as PositionBias
