"""Changes to the modules of upstream libraries, made as soon as they are imported."""

from __future__ import annotations

import functools
import logging
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

from .import_hooks import AfterImport

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

FIRST_TOO_NEW = 5  # major version of transformers


def hide_debugging(module: ModuleType) -> None:
    """Let `mmengine.logging.print_log` print nothing of the level DEBUG, as mmdet's "Could not import OneDL".

    Where no logger is named, mmengine prints messages whatever their level.
    """
    print_log = module.print_log

    @functools.wraps(print_log)
    def quiet(msg: object, logger: object = None, level: int = logging.INFO) -> None:
        if logger is not None or level > logging.DEBUG:
            print_log(msg, logger, level)

    module.print_log = quiet


def turn_webp(module: ModuleType) -> None:
    """Let `mmcv.imfrombytes` turn WebP images as their EXIF data say, for all transforms that load an image.

    OpenCV turns images in the other formats. Without this a model would be trained on such images as they lie in
    their files, and run on them as they are shown.
    """
    decode = module.imfrombytes

    @functools.wraps(decode)
    def imfrombytes(content: bytes, flag: str = 'color', *args: object, **kwargs: object) -> np.ndarray:
        from ..runtime.images import turned_webp  # imported here: OpenCV takes a while

        image = turned_webp(content) if flag == 'color' else None
        if image is None:
            return decode(content, flag, *args, **kwargs)
        channel_order = args[0] if args else kwargs.get('channel_order', 'bgr')
        return image if channel_order == 'bgr' else image[..., ::-1].copy()

    module.imfrombytes = imfrombytes


def leave_out_multimodal(dependency: ModuleType) -> None:
    """Tell mmpretrain that its multimodal models cannot be used, beside a `transformers` that is too new for them.

    Otherwise `import mmpretrain.models` fails with version 5, in which functions that they need are gone.
    """
    try:
        major = int(version('transformers').split('.')[0])
    except (PackageNotFoundError, ValueError):
        return
    if major >= FIRST_TOO_NEW:
        dependency.WITH_MULTIMODAL = False


def use_faster_coco_eval(metric: ModuleType) -> None:
    """Let mmdet's `CocoMetric` evaluate with faster-coco-eval, if that is installed.

    It gives the numbers of pycocotools, whose Python loops take minutes for COCO's 5000 validation images. By itself
    it writes the table of results to a logger that shows nothing.
    """
    if find_spec('faster_coco_eval') is not None:
        from faster_coco_eval import COCOeval_faster

        metric.COCOeval = functools.partial(COCOeval_faster, print_function=print)


def sample_without_copies(module: ModuleType) -> None:
    """Let deformable attention on the CPU, and in bfloat16, run `bioattn_mm.ops.deformable_attention`.

    mmcv has its kernel for a GPU alone, without bfloat16, and else keeps all samples, several times the feature maps,
    and waits for a GPU three times a level. Graphs of exporters and of torch.compile have mmcv's formula.
    """
    formula = module.multi_scale_deformable_attn_pytorch

    @functools.wraps(formula)
    def sample(value: Tensor, shapes: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        from ..ops import deformable_attention  # imported here: it loads the compiled operators
        from ..ops.portable import is_exported, is_traced

        if is_traced() or is_exported():
            return formula(value, shapes, locations, weights)
        return deformable_attention(value, shapes, locations, weights).flatten(2)

    module.multi_scale_deformable_attn_pytorch = sample


PATCHES = AfterImport(
    {
        'mmengine.logging': hide_debugging,
        'mmcv.image.io': turn_webp,
        'mmcv.ops.multi_scale_deform_attn': sample_without_copies,
        'mmpretrain.utils.dependency': leave_out_multimodal,
        'mmdet.evaluation.metrics.coco_metric': use_faster_coco_eval,
    }
)
