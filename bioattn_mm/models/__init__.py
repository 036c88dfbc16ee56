"""Backbones, necks and a data preprocessor, registered in `bioattn_mm.registry.MODELS`."""

from .backbones import VARS, ConViT, GABSwin, GABViT, PerViT, TransNeXt
from .data_preprocessor import multichannel_preprocessor
from .necks import SimpleFeaturePyramid

__all__ = [
    'ConViT',
    'GABSwin',
    'GABViT',
    'PerViT',
    'SimpleFeaturePyramid',
    'TransNeXt',
    'VARS',
    'multichannel_preprocessor',
]
