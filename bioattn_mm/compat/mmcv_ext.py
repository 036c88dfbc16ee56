"""`mmcv._ext`, the module of compiled functions that `mmcv.ops` loads, made of functions of this package."""

import sys
import warnings
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType

MODULE_NAME = 'mmcv._ext'

# These packages guard their imports of mmcv.ops: imported before `install`, they go on without the ops.
PACKAGES_USING_OPS = ('mmdet.models', 'mmdet.structures', 'mmseg.models')


def install() -> bool:
    """Provide `mmcv._ext` where mmcv has no compiled ops; do nothing where it has them.

    Provided are the functions that Mask R-CNN, DINO, UperNet and Mask2Former reach in training and testing,
    on CPU and GPU: `nms`, `softnms`, `nms_match`, RoIAlign, RoIPool, multi-scale deformable attention, and
    the sigmoid and softmax focal losses (`point_sample` is plain PyTorch already). `mmcv.ops` imports as a
    whole; any other function raises a NotImplementedError when it is called.

    Call it before the models of mmdet or mmseg are imported: these import `mmcv.ops` at the head of their
    files. A second call does nothing. Forked DataLoader workers inherit the module. A spawned worker is a
    fresh interpreter that runs the main script again, except for what is under `if __name__ == '__main__'`:
    where workers are spawned, call `install` at the top level of the script, not in its main function.

    Returns:
        Whether `mmcv.ops` runs on the functions of this package.
    """
    if MODULE_NAME in sys.modules:
        return sys.modules[MODULE_NAME].__spec__.origin == __name__
    if _has_compiled_ops():
        return False

    early = [name for name in PACKAGES_USING_OPS if name in sys.modules]
    if early:
        warnings.warn(
            f'imported before bioattn_mm.compat.install(), so perhaps without mmcv.ops: {", ".join(early)}; '
            'call install() first',
            RuntimeWarning,
            stacklevel=2,
        )

    import mmcv

    module = _build_module()
    sys.modules[MODULE_NAME] = module
    mmcv._ext = module
    return True


def _has_compiled_ops() -> bool:
    """Whether mmcv was installed with its compiled module; mmcv is not imported to find out."""
    package = find_spec('mmcv')
    if package is None:
        raise ModuleNotFoundError("No module named 'mmcv': pip install onedl-mmcv", name='mmcv')
    return PathFinder.find_spec(MODULE_NAME, package.submodule_search_locations) is not None


def _build_module() -> ModuleType:
    # Imported here: torch and torchvision are not needed where mmcv has its compiled ops.
    from . import deformable_attention, focal_loss, nms, roi_align, roi_pool

    functions = [
        nms.nms,
        nms.softnms,
        nms.nms_match,
        roi_align.roi_align_forward,
        roi_align.roi_align_backward,
        roi_pool.roi_pool_forward,
        roi_pool.roi_pool_backward,
        deformable_attention.ms_deform_attn_forward,
        deformable_attention.ms_deform_attn_backward,
        focal_loss.sigmoid_focal_loss_forward,
        focal_loss.sigmoid_focal_loss_backward,
        focal_loss.softmax_focal_loss_forward,
        focal_loss.softmax_focal_loss_backward,
        get_compiler_version,
        get_compiling_cuda_version,
    ]
    module = ModuleType(MODULE_NAME, 'Functions of mmcv._ext over PyTorch and torchvision.')
    # mmengine asks find_spec('mmcv._ext') for the ops, which reads this of a module that is in sys.modules.
    module.__spec__ = ModuleSpec(MODULE_NAME, loader=None, origin=__name__)
    module.__getattr__ = _missing_function
    for function in functions:
        setattr(module, function.__name__, function)
    return module


def get_compiler_version() -> str:
    """Compiler of the ops, for mmcv's report on its environment."""
    return 'n/a (ops over PyTorch)'


def get_compiling_cuda_version() -> str:
    """CUDA version of the ops, for mmcv's report on its environment."""
    return 'n/a (ops over PyTorch)'


def _missing_function(name: str) -> Callable:
    """Attribute `name` of the module where it is none of the provided functions.

    `mmcv.ops` checks at import that every function of every op is there, so each name gives a function, and
    the error comes when that is called.
    """
    if name.startswith('_'):
        raise AttributeError(f'module {MODULE_NAME!r} has no attribute {name!r}')

    def missing(*args, **kwargs):
        import mmcv

        raise NotImplementedError(
            f'the mmcv op {name!r} is not among those that bioattn_mm.compat provides; install mmcv with its '
            'compiled ops, in an environment with torch: MMCV_WITH_OPS=1 pip install --force-reinstall '
            '--no-deps --no-cache-dir --no-build-isolation --no-binary onedl-mmcv '
            f'onedl-mmcv=={mmcv.__version__} (and FORCE_CUDA=1 for CUDA ops where no GPU is present)'
        )

    missing.__name__ = name
    return missing
