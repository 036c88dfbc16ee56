"""PerViT: multi-head peripheral attention (Min et al., NeurIPS 2022)."""

from .ablations import ContentAttention, PositionAttention, VariedPosition, VectorDistance
from .attention import DistanceEmbedding, PeripheralAttention, PeripheralPosition
from .backbone import PerViT

__all__ = [
    'ContentAttention',
    'DistanceEmbedding',
    'PerViT',
    'PeripheralAttention',
    'PeripheralPosition',
    'PositionAttention',
    'VariedPosition',
    'VectorDistance',
]
