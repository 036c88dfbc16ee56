"""Biologically inspired attention backbones for dense prediction with OpenMMLab."""

from .version import __version__

__all__ = ['__version__']
