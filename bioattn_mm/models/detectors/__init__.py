"""Detectors that differ from mmdet's. Importing them imports mmdet: `bioattn_mm.registry` does, for these names."""

from .dino import CompatibleDINO

__all__ = ['CompatibleDINO']
