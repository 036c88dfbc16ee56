"""Backbones and necks, registered in `bioattn_mm.registry.MODELS`."""

from .backbones import VARS, ConViT, GABSwin, GABViT, PerViT, TransNeXt
from .necks import SimpleFeaturePyramid

__all__ = ['ConViT', 'GABSwin', 'GABViT', 'PerViT', 'SimpleFeaturePyramid', 'TransNeXt', 'VARS']
