"""Biologically inspired attention backbones for dense prediction with OpenMMLab."""

from . import compat
from .version import __version__

__all__ = ['__version__']

# The models of mmdet and mmseg import mmcv.ops: this must come before them.
compat.install()
