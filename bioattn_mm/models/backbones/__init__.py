"""Backbones, one file per system."""

from .convit import ConViT
from .gab_swin import GABSwin
from .gab_vit import GABViT
from .pervit import PerViT
from .transnext import TransNeXt
from .vars import VARS

__all__ = ['ConViT', 'GABSwin', 'GABViT', 'PerViT', 'TransNeXt', 'VARS']
