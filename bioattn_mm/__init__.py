"""Biologically inspired attention backbones for dense prediction with OpenMMLab."""

from . import compat
from .version import __version__

__all__ = ['Predictor', '__version__']

# The models of mmdet and mmseg import mmcv.ops: this must come before them.
compat.install()


def __getattr__(name: str) -> object:
    # Prediction imports mmdet and mmseg, which takes seconds: at first use.
    if name == 'Predictor':
        from .inference import Predictor

        return Predictor
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
