"""Backbones and necks, registered in `bioattn_mm.registry.MODELS`."""

from .backbones import TransNeXt

__all__ = ['TransNeXt']
