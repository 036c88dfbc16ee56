"""ConViT: gated positional self-attention (d'Ascoli et al., ICML 2021)."""

from .attention import GPSA as GPSA
from .attention import FrozenGPSA as FrozenGPSA
from .attention import UngatedGPSA as UngatedGPSA
from .backbone import ConViT as ConViT
