"""Backbones, one file per system."""

from .transnext import TransNeXt

__all__ = ['TransNeXt']
