"""Backbones and necks, registered in `bioattn_mm.registry.MODELS`."""

from .backbones import ConViT, PerViT, TransNeXt
from .necks import SimpleFeaturePyramid

__all__ = ['ConViT', 'PerViT', 'SimpleFeaturePyramid', 'TransNeXt']
