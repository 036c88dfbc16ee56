"""COCO's average precision by faster-coco-eval where that is installed.

mmdet's `CocoMetric` computes it with pycocotools, in Python loops over images and classes: minutes for COCO's 5000
validation images. faster-coco-eval gives the same numbers from C++. The metric keeps its name, so that configs run
wherever they are.
"""

import functools
from importlib.util import find_spec
from types import ModuleType

from .after_import import AfterImport


def use_faster(metric: ModuleType) -> None:
    """Let mmdet's module of `CocoMetric` evaluate with faster-coco-eval, if that is installed.

    What the metric prints stays: by itself, faster-coco-eval writes it to a logger that shows nothing.
    """
    if find_spec('faster_coco_eval') is not None:
        from faster_coco_eval import COCOeval_faster

        metric.COCOeval = functools.partial(COCOeval_faster, print_function=print)


def install() -> None:
    """Do so when mmdet's metric is imported; a second call does nothing."""
    AfterImport('mmdet.evaluation.metrics.coco_metric', use_faster).install()
