"""Detectors that differ from mmdet's. Importing them imports mmdet, so `bioattn_mm.models` leaves them out."""

from ... import compat

compat.install()

from .dino import DINO  # noqa: E402

__all__ = ['DINO']
