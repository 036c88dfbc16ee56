"""Transforms that give what mmdet's and mmseg's give for the same random draws, in less time.

The training pipelines of `configs/_base_/datasets` have them.
"""

import cv2
import numpy as np
from mmcv.transforms import BaseTransform
from mmengine.registry import TRANSFORMS as MMENGINE_TRANSFORMS

from ..registry import TRANSFORMS


def in_order(image: np.ndarray) -> np.ndarray:
    """The same pixels with rows and columns in the order in which they are in memory.

    mmcv flips an image by reading it backwards, which makes every later copy of it several times slower.

    Args:
        image: (H, W) or (H, W, C).
    """
    vertical, horizontal = (stride < 0 for stride in image.strides[:2])
    if not (vertical or horizontal):
        return image
    forwards = image[:: -1 if vertical else 1, :: -1 if horizontal else 1]
    return cv2.flip(forwards, -1 if vertical and horizontal else int(horizontal))


@TRANSFORMS.register_module()
class InOrderRandomFlip(BaseTransform):
    """`RandomFlip` of the config's default scope, whose image and label map are in order in memory (see `in_order`).

    Args:
        **kwargs: Arguments of that `RandomFlip`.
    """

    def __init__(self, **kwargs: object) -> None:
        self.flip = MMENGINE_TRANSFORMS.build(dict(type='RandomFlip', **kwargs))

    def transform(self, results: dict) -> dict | None:
        results = self.flip(results)
        for key in ('img', 'gt_seg_map'):
            if results.get(key) is not None:
                results[key] = in_order(results[key])
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.flip})'


@TRANSFORMS.register_module()
class ChannelsFirst(BaseTransform):
    """Copy an image to where its channels follow each other in memory.

    The shape stays (H, W, C). `PackDetInputs` and `PackSegInputs` want it so, and make a slower copy otherwise.
    """

    def transform(self, results: dict) -> dict:
        image = in_order(results['img'])
        if image.ndim == 3:
            planes = np.empty((image.shape[2], *image.shape[:2]), image.dtype)
            cv2.split(image, list(planes))
            results['img'] = planes.transpose(1, 2, 0)
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}()'
