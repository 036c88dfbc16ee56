"""ConViT: gated positional self-attention (d'Ascoli et al., ICML 2021)."""

from .attention import GPSA, FrozenGPSA, UngatedGPSA
from .backbone import ConViT

__all__ = ['ConViT', 'FrozenGPSA', 'GPSA', 'UngatedGPSA']
