"""What is wrong with data: the words for it, and the check of an object's mask, before pycocotools decodes it."""

from dataclasses import dataclass

import numpy as np
from mmengine.utils import is_list_of

from ..errors import InputError

WHAT_TO_DO = 'repair or remove it; tools/train.py --skip-bad-data trains without it'
# A coordinate is limited in pixels: pycocotools needs memory in proportion to the length of an outline.
MAX_COORDINATE = 1e5
MAX_BITS = 60  # numbers in run lengths have at most so many bits


class BadDataError(InputError):
    """An image or annotation cannot be used; the message names its file."""


@dataclass(frozen=True)
class Problem:
    """Something that is wrong, as the tools list it."""

    kind: str  # a few words, the same for all problems of this kind
    file: str  # the image, label map or annotation file
    detail: str = ''  # what was found, such as the id of an annotation

    def __str__(self) -> str:
        return f'{self.file}: {self.detail or self.kind}'


def check_segmentation(segmentation: object, shape: tuple[int, int]) -> None:
    """Check the mask of an instance before pycocotools decodes it, which crashes or returns garbage for bad ones.

    It is as in COCO's files: polygons, lists of x1, y1, x2, y2, ... in pixels, or run lengths, a dict of `size`
    (H, W) and `counts`, a list of numbers or COCO's compressed string of them. A `ValueError` says what is wrong.
    """
    if isinstance(segmentation, list):
        try:
            if any(np.asarray(polygon).dtype.kind in 'US' for polygon in segmentation):
                raise TypeError('text')  # `np.asarray(..., dtype=float)` would take text
            polygons = [np.asarray(polygon, dtype=float) for polygon in segmentation]
        except (TypeError, ValueError) as error:
            raise ValueError('a polygon has coordinates that are not numbers') from error
        # One valid polygon is enough: mmdet drops the others.
        if not any(polygon.ndim == 1 and polygon.size >= 6 and polygon.size % 2 == 0 for polygon in polygons):
            raise ValueError('no polygon of three points or more, as x1, y1, x2, y2, x3, y3')
        # `any(... >= ...)` would pass NaN, which compares as false.
        if not all((np.abs(polygon) < MAX_COORDINATE).all() for polygon in polygons):
            raise ValueError('a polygon has a coordinate that is not finite or is far outside of the image')
    elif isinstance(segmentation, dict) and {'size', 'counts'} <= set(segmentation):
        size, counts = segmentation['size'], segmentation['counts']
        if size != list(shape):
            raise ValueError(f'the run lengths are for an image of size {size}, not {list(shape)}')
        counts = read_run_lengths(counts) if isinstance(counts, str) else counts
        if not is_list_of(counts, int) or min(counts, default=0) < 0 or sum(counts) != shape[0] * shape[1]:
            raise ValueError(f'the run lengths do not add up to the {shape[0] * shape[1]} pixels of the image')
    else:
        raise ValueError('neither polygons nor run lengths')


def read_run_lengths(string: str) -> list[int]:
    """Decode COCO's compressed string; pycocotools gives a mask, with uninitialized pixels after the last run.

    Each character holds 6 bits above '0': 5 bits of a number, the lowest first, and a bit that is set if more follow;
    the highest bit of a number is its sign. From the fourth number on, the run length two places before is added.
    """
    counts, value, shift = [], 0, 0
    for code in string.encode():
        group = code - ord('0')
        value |= (group & 31) << shift
        shift += 5
        if shift > MAX_BITS:  # a number without an end would never be done
            raise ValueError('the run lengths are not what COCO writes')
        if not group & 32:
            if group & 16:
                value -= 1 << shift
            counts.append(value + counts[-2] if len(counts) > 2 else value)
            value, shift = 0, 0
    return counts
