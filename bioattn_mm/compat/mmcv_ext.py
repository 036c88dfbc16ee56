"""`mmcv._ext`, the module of compiled functions that `mmcv.ops` loads, made of functions of this package."""

import sys
import warnings
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

MODULE_NAME = 'mmcv._ext'

# These packages guard their imports of mmcv.ops: imported without the ops, they go on without them.
PACKAGES_USING_OPS = ('mmdet.models', 'mmdet.structures', 'mmseg.models')


def install() -> None:
    """Provide `mmcv._ext` where mmcv has no compiled ops; `import bioattn_mm` calls this.

    Provided are the functions that Mask R-CNN, DINO, UperNet and Mask2Former reach in training and testing,
    on CPU and GPU: `nms`, `softnms`, `nms_match`, RoIAlign, RoIPool, multi-scale deformable attention, and
    the sigmoid and softmax focal losses (`point_sample` is plain PyTorch already). `mmcv.ops` imports as a
    whole; any other function raises a NotImplementedError when it is called.

    Nothing is imported before `mmcv._ext` is. Python asks the last finder of `sys.meta_path`, which this is, only
    for modules that no other has found: compiled ops come first. A second call does nothing.

    Models of mmdet and mmseg import `mmcv.ops` at the head of their files. Those that were imported before do
    without it, which a RuntimeWarning says.
    """
    if Finder in sys.meta_path:
        return
    early = [name for name in PACKAGES_USING_OPS if name in sys.modules]
    if early and find_spec(MODULE_NAME) is None:
        warnings.warn(
            f'imported before bioattn_mm, and so without mmcv.ops: {", ".join(early)}; import bioattn_mm first',
            RuntimeWarning,
            # The line that imports bioattn_mm.
            stacklevel=3,
        )
    sys.meta_path.append(Finder)


class Finder:
    """Finds and loads `mmcv._ext`, as `importlib.abc.MetaPathFinder` and `importlib.abc.Loader` say."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, cls, origin=__name__) if name == MODULE_NAME else None

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        return ModuleType(spec.name, 'Functions of mmcv._ext over PyTorch and torchvision.')

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        # Imported here: torch and torchvision are not needed before, nor where mmcv has its compiled ops.
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
        for function in functions:
            setattr(module, function.__name__, function)
        module.__getattr__ = _missing_function


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
