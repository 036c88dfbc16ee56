"""Backbones, one file per system."""

from .convit import ConViT
from .pervit import PerViT
from .transnext import TransNeXt

__all__ = ['ConViT', 'PerViT', 'TransNeXt']
