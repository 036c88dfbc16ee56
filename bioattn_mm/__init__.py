"""Biologically inspired attention backbones for dense prediction with OpenMMLab."""

from importlib import import_module

from . import compat, renamed
from .timm_models import hook
from .version import __version__

# Where each of these is. They are imported at first use: the backbones take PyTorch, timm and mmengine, which take
# seconds to import, prediction takes mmdet and mmseg, too.
_LAZY = {
    'ConViT': 'models',
    'GABSwin': 'models',
    'GABViT': 'models',
    'PerViT': 'models',
    'Predictor': 'inference',
    'SimpleFeaturePyramid': 'models',
    'TransNeXt': 'models',
    'VARS': 'models',
}

__all__ = [*_LAZY, '__version__']

# The models of mmdet and mmseg import mmcv.ops: this must come before them.
compat.install()
hook.install()
renamed.install()


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(f'.{_LAZY[name]}', __name__), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
