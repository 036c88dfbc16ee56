"""Biologically inspired attention backbones for dense prediction with OpenMMLab."""

from . import compat
from .version import __version__

__all__ = ['__version__']

# Before anything imports the models of mmdet or mmseg, which need mmcv.ops.
compat.install()
