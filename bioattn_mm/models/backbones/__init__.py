"""Backbones, one file per system."""

from .convit import ConViT
from .transnext import TransNeXt

__all__ = ['ConViT', 'TransNeXt']
