"""What is wrong with an annotation: its label map, its mask of polygons or run lengths."""

from collections.abc import Sequence

import numpy as np
from mmengine.utils import is_list_of

from ..errors import InputError

WHAT_TO_DO = 'repair or remove it; tools/train.py --skip-bad-data trains without it'

# Value of the pixels in a label map that do not count.
IGNORED = 255
# A coordinate is limited in pixels: pycocotools needs memory in proportion to the length of an outline.
MAX_COORDINATE = 1e5
# A number in a string of run lengths is limited in bits.
MAX_BITS = 60


class BadDataError(InputError):
    """An image or annotation cannot be used; the message names its file."""


def labels_of_colours(pixels: np.ndarray, colours: Sequence[Sequence[int]], num_classes: int) -> np.ndarray:
    """Turn a label map of colours into one of classes.

    Args:
        pixels: (H, W, 3) uint8, as mmcv decodes it: B, G, R.
        colours: R, G and B of each class; of further ones the pixels do not count.
        num_classes: Number of classes.

    Returns:
        np.ndarray: (H, W) uint8, the class of each pixel, or 255.

    Raises:
        ValueError: Says which colour is of no class.
    """
    if pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ValueError(f'is of shape {pixels.shape}, expected an RGB image, as there is a palette file')
    codes = pixels.astype(np.int32) @ (1, 256, 65536)
    found, inverse = np.unique(codes, return_inverse=True)
    classes = {(red << 16) + (green << 8) + blue: index for index, (red, green, blue) in enumerate(colours)}
    unknown = [code for code in found.tolist() if code not in classes]
    if unknown:
        colour = ' '.join(str(unknown[0] >> shift & 255) for shift in (16, 8, 0))
        count = np.count_nonzero(codes == unknown[0])
        raise ValueError(f'has {count} pixels of the colour {colour}, which the palette file does not have')
    labels = np.array([classes[code] for code in found.tolist()])
    return np.where(labels < num_classes, labels, IGNORED)[inverse.reshape(codes.shape)].astype(np.uint8)


def check_labels(labels: np.ndarray, shape: tuple[int, int], num_classes: int | None = None, first: int = 0) -> None:
    """Check a label map before it is resized and cropped.

    Args:
        labels: (H, W) uint8.
        shape: Height and width of its image in pixels.
        num_classes: Number of classes; None leaves the values unchecked.
        first: Value of class 0 in the file, for the message.

    Raises:
        ValueError: Says what is wrong.
    """
    if labels.shape != shape:
        raise ValueError(f'is of shape {labels.shape}, its image of {shape}')
    wrong = [] if num_classes is None else labels[(labels >= num_classes) & (labels != IGNORED)]
    if len(wrong):
        raise ValueError(wrong_value(wrong.min() + first, num_classes, first))


def wrong_value(value: int, num_classes: int | None, first: int) -> str:
    """What is said of a label map that holds a value of no class; `first` is the value of class 0 in the file."""
    if num_classes is None:
        return f'has the value {value}, expected 0 to {IGNORED}'
    return (
        f'has the value {value}, expected {first} to {num_classes - 1 + first} for {num_classes} classes, or '
        f'{IGNORED} where a pixel does not count'
    )


def check_segmentation(segmentation: object, shape: tuple[int, int]) -> None:
    """Check the mask of an instance before pycocotools decodes it, which crashes or returns garbage for bad ones.

    Args:
        segmentation: As in COCO's annotation files: polygons, a list of lists x1, y1, x2, y2, ... in pixels, or run
            lengths, a dict of `size` (H, W) and `counts`, a list of numbers or COCO's compressed string of them.
        shape: Height and width of the image in pixels.

    Raises:
        ValueError: Says what is wrong.
    """
    if isinstance(segmentation, list):
        try:
            if any(np.asarray(polygon).dtype.kind in 'US' for polygon in segmentation):
                raise TypeError('text')  # which the next line would take
            polygons = [np.asarray(polygon, dtype=float) for polygon in segmentation]
        except (TypeError, ValueError) as error:
            raise ValueError('a polygon has coordinates that are not numbers') from error
        # One valid polygon is enough: mmdet drops the others.
        if not any(polygon.ndim == 1 and polygon.size >= 6 and polygon.size % 2 == 0 for polygon in polygons):
            raise ValueError('no polygon of three points or more, as x1, y1, x2, y2, x3, y3')
        # Not `any(... >= ...)`: comparisons with NaN are false.
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
    """Decode COCO's compressed string of run lengths.

    pycocotools can only decode it to a mask, where pixels after the last run are uninitialized memory.

    Each character holds 6 bits above '0': 5 bits of a number, the lowest first, and a bit that is set if more follow;
    the highest bit of a number is its sign. From the fourth number on, the run length two places before is added.

    Raises:
        ValueError: A number has more than `MAX_BITS`.
    """
    counts, value, shift = [], 0, 0
    for code in string.encode():
        group = code - ord('0')
        value |= (group & 31) << shift
        shift += 5
        if shift > MAX_BITS:  # a number without an end would take for ever
            raise ValueError('the run lengths are not what COCO writes')
        if not group & 32:
            if group & 16:
                value -= 1 << shift
            counts.append(value + counts[-2] if len(counts) > 2 else value)
            value, shift = 0, 0
    return counts
