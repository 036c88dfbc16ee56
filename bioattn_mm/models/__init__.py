"""Backbones and necks, registered in `bioattn_mm.registry.MODELS`."""

from .backbones import ConViT, TransNeXt

__all__ = ['ConViT', 'TransNeXt']
