"""A stand-in for `mmcv._ext`, the module of compiled functions that `mmcv.ops` loads."""

import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType

from .missing import refuse
from .stand_in import StandIn

MODULE_NAME = 'mmcv._ext'

# These packages catch the ImportError of mmcv.ops: imported before the stand-in, they work without the ops.
PACKAGES_USING_OPS = ('mmdet.models', 'mmdet.structures', 'mmseg.models')


def install() -> None:
    """Provide `mmcv._ext` if mmcv has no compiled ops.

    It provides the functions that Mask R-CNN, DINO, UperNet and Mask2Former use in training and testing, on CPU and
    GPU: `nms`, RoIAlign with averages, multi-scale deformable attention, and the sigmoid focal loss (`point_sample`
    is plain PyTorch already). All of `mmcv.ops` can be imported; any other function raises a
    NotImplementedError when it is called.

    Compiled ops take precedence, and nothing is imported until `mmcv._ext` is. A second call does nothing.

    Models of mmdet and mmseg that were imported before work without `mmcv.ops`; a RuntimeWarning says so.
    """
    if STAND_IN in sys.meta_path:
        return
    early = [name for name in PACKAGES_USING_OPS if name in sys.modules]
    if early and find_spec(MODULE_NAME) is None:
        warnings.warn(
            f'imported before bioattn_mm, and so without mmcv.ops: {", ".join(early)}; import bioattn_mm first',
            RuntimeWarning,
            stacklevel=4,  # the line that imports bioattn_mm
        )
    STAND_IN.install()


def fill(module: ModuleType) -> None:
    """Give a module the functions of `mmcv._ext`."""
    # Imported here, because torch and torchvision take seconds and compiled ops do not need this.
    from . import deformable_attention, focal_loss, nms, roi_align

    functions = [
        nms.nms,
        roi_align.roi_align_forward,
        roi_align.roi_align_backward,
        deformable_attention.ms_deform_attn_forward,
        deformable_attention.ms_deform_attn_backward,
        focal_loss.sigmoid_focal_loss_forward,
        focal_loss.sigmoid_focal_loss_backward,
        get_compiler_version,
        get_compiling_cuda_version,
    ]
    for function in functions:
        setattr(module, function.__name__, function)
    module.__getattr__ = _missing_function


STAND_IN = StandIn(MODULE_NAME, __name__, fill)


def get_compiler_version() -> str:
    """Compiler of the ops, for mmcv's report of its environment."""
    return 'n/a (ops over PyTorch)'


def get_compiling_cuda_version() -> str:
    """CUDA version of the ops, for mmcv's report of its environment."""
    return 'n/a (ops over PyTorch)'


def _missing_function(name: str) -> Callable:
    """Stand-in for a function that is not provided; it raises the error only when it is called.

    `mmcv.ops` checks at import that the functions of all ops exist.
    """
    if name.startswith('_'):
        raise AttributeError(f'module {MODULE_NAME!r} has no attribute {name!r}')

    def missing(*args, **kwargs):
        refuse(name)

    missing.__name__ = name
    return missing
