"""PerViT: multi-head peripheral attention (Min et al., NeurIPS 2022)."""

from .ablations import ContentAttention as ContentAttention
from .ablations import PositionAttention as PositionAttention
from .ablations import VariedPosition as VariedPosition
from .ablations import VectorDistance as VectorDistance
from .attention import DistanceEmbedding as DistanceEmbedding
from .attention import PeripheralAttention as PeripheralAttention
from .attention import PeripheralPosition as PeripheralPosition
from .backbone import PerViT as PerViT
