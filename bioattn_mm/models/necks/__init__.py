"""Necks for backbones whose outputs have one stride."""

from .simple_feature_pyramid import SimpleFeaturePyramid

__all__ = ['SimpleFeaturePyramid']
