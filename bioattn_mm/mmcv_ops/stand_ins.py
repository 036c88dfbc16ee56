"""Stand-ins for `mmcv._ext`, the compiled operators of mmcv, and for `panopticapi`, where they are not installed.

An operator of mmcv is a function with mmcv's arguments in a module of this subpackage, and its name in `OPERATORS`.
"""

import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import NoReturn

from .import_hooks import StandIn

# Modules of this subpackage, and the names in `mmcv._ext` that they have: what models of mmdet, mmseg and mmpretrain
# call. mmcv's operators on point clouds and rotated boxes are not among them; some, as `point_sample`, are PyTorch.
MODULES = {
    'boxes': ['nms', 'softnms', 'nms_match', 'bbox_overlaps'],
    'deformable_attention': ['ms_deform_attn_forward', 'ms_deform_attn_backward'],
    'deformable_convolution': [
        *('deform_conv_forward', 'deform_conv_backward_input', 'deform_conv_backward_parameters'),
        *('modulated_deform_conv_forward', 'modulated_deform_conv_backward'),
    ],
    'focal_loss': [
        *('sigmoid_focal_loss_forward', 'sigmoid_focal_loss_backward'),
        *('softmax_focal_loss_forward', 'softmax_focal_loss_backward'),
    ],
    'neighbourhoods': [
        *('carafe_forward', 'carafe_backward', 'carafe_naive_forward', 'carafe_naive_backward'),
        *('psamask_forward', 'psamask_backward', 'masked_im2col_forward', 'masked_col2im_forward'),
    ],
    'regions': [
        *('roi_align_forward', 'roi_align_backward', 'roi_pool_forward', 'roi_pool_backward'),
        *('deform_roi_pool_forward', 'deform_roi_pool_backward'),
    ],
}
OPERATORS = {name: module for module, names in MODULES.items() for name in names}
VERSIONS = ('get_compiler_version', 'get_compiling_cuda_version')  # mmcv's report of its environment asks for these

# These packages catch the ImportError of mmcv.ops: imported before the stand-in, they work without the operators.
PACKAGES_USING_OPS = ('mmdet.models', 'mmdet.structures', 'mmseg.models')


def install() -> None:
    """Provide the modules of `STAND_INS` that are not installed; nothing else is imported before they are.

    All of `mmcv.ops` can be imported; an operator that is not in `OPERATORS` raises a NotImplementedError when it is
    called. Models of mmdet and mmseg that were imported before work without `mmcv.ops`; a RuntimeWarning says so.
    """
    early = [name for name in PACKAGES_USING_OPS if name in sys.modules]
    if early and MMCV_EXT not in sys.meta_path and find_spec(MMCV_EXT.name) is None:
        warnings.warn(
            f'imported before bioattn_mm, and so without mmcv.ops: {", ".join(early)}; import bioattn_mm first',
            RuntimeWarning,
            stacklevel=4,  # the line that imports bioattn_mm
        )
    for stand_in in STAND_INS:
        stand_in.install()


def refuse(name: str) -> NoReturn:
    """Raise a NotImplementedError that says how to install mmcv with its compiled operators."""
    import mmcv

    raise NotImplementedError(
        f'bioattn_mm.mmcv_ops does not provide the mmcv op {name!r}; install mmcv with its '
        'compiled ops, in an environment with torch: MMCV_WITH_OPS=1 pip install --force-reinstall '
        '--no-deps --no-cache-dir --no-build-isolation --no-binary onedl-mmcv '
        f'onedl-mmcv=={mmcv.__version__} (and FORCE_CUDA=1 for CUDA ops where no GPU is present)'
    )


def other_function(name: str) -> Callable:
    """What `mmcv._ext` has under a name that is not in `OPERATORS`: `mmcv.ops` checks at import that it is there."""
    if name.startswith('_'):
        raise AttributeError(f'module {MMCV_EXT.name!r} has no attribute {name!r}')
    if name in VERSIONS:
        return lambda: 'n/a (ops over PyTorch)'
    return lambda *args, **kwargs: refuse(name)


MMCV_EXT = StandIn('mmcv._ext', __name__, OPERATORS, other_function)
STAND_INS = (
    MMCV_EXT,
    StandIn('panopticapi', __name__, {}, is_package=True),
    StandIn('panopticapi.utils', __name__, dict.fromkeys(('rgb2id', 'id2rgb'), 'panoptic')),
    StandIn('panopticapi.evaluation', __name__, dict.fromkeys(('OFFSET', 'VOID', 'PQStat', 'PQStatCat'), 'panoptic')),
)
