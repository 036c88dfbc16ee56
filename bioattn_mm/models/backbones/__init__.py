"""Backbones, one file for each; `Backbone`, `HierarchicalBackbone` and `PlainBackbone` are their bases."""

from .base import Backbone, HierarchicalBackbone, PlainBackbone
from .convit import ConViT
from .gab_swin import GABSwin
from .gab_vit import GABViT
from .pervit import PerViT
from .transnext import TransNeXt
from .vars import VARS

__all__ = [
    'Backbone',
    'ConViT',
    'GABSwin',
    'GABViT',
    'HierarchicalBackbone',
    'PerViT',
    'PlainBackbone',
    'TransNeXt',
    'VARS',
]
