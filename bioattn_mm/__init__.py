"""Biologically inspired attention backbones for dense prediction with OpenMMLab."""

from importlib import import_module

from . import mmcv_ops
from .mmcv_ops.import_hooks import AfterImport
from .version import __version__

# Where each of these is. They are imported at first use: the backbones take PyTorch, timm and mmengine, which take
# seconds to import, prediction takes mmdet and mmseg, too.
_LAZY = {
    'ConViT': 'systems.convit',
    'GABSwin': 'systems.gab',
    'GABViT': 'systems.gab',
    'PerViT': 'systems.pervit',
    'Predictor': 'inference',
    'SimpleFeaturePyramid': 'systems.common.simple_feature_pyramid',
    'TransNeXt': 'systems.transnext',
    'VARS': 'systems.vars',
}

__all__ = [*_LAZY, '__version__']

# The models of mmdet and mmseg import mmcv.ops: this must come before them.
mmcv_ops.install()
# timm gets the models of this package when it is imported, or now if it is.
AfterImport({'timm.models': lambda _: import_module('bioattn_mm.systems.timm_models.timm_registry')}).install()


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(f'.{_LAZY[name]}', __name__), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
