"""Backbones and necks, registered in `bioattn_mm.registry.MODELS`."""

from .backbones import ConViT, TransNeXt
from .necks import SimpleFeaturePyramid

__all__ = ['ConViT', 'SimpleFeaturePyramid', 'TransNeXt']
