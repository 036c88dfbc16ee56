"""Pipeline transforms that load images and annotations, and name what they cannot load."""

import mmcv.transforms
import numpy as np
from mmcv.transforms import BaseTransform
from mmengine.registry import TRANSFORMS as MMENGINE_TRANSFORMS
from mmengine.utils import is_list_of

from ..errors import InputError
from ..registry import TRANSFORMS

WHAT_TO_DO = 'repair or remove it, or train without it: tools/train.py --skip-bad-data'

# In pixels. COCO's masks take memory by the length of an outline, so that a far coordinate ends the process.
MAX_COORDINATE = 1e5


class BadDataError(InputError):
    """An image or annotation that cannot be used. The message names its file."""


@TRANSFORMS.register_module()
class CheckedLoadImageFromFile(mmcv.transforms.LoadImageFromFile):
    """mmcv's `LoadImageFromFile`, which names the file that is missing or cannot be decoded.

    Raises:
        BadDataError: In `transform`.
    """

    def transform(self, results: dict) -> dict | None:
        try:
            return super().transform(results)
        except FileNotFoundError as error:
            raise BadDataError(f'image not found: {results["img_path"]}') from error
        except Exception as error:
            raise BadDataError(
                f'cannot decode the image {results["img_path"]}: no image, or damaged; {WHAT_TO_DO}'
            ) from error


@TRANSFORMS.register_module()
class CheckedLoadAnnotations(BaseTransform):
    """`LoadAnnotations` of the library that the config runs in, which names the annotation that it cannot load.

    A label map must be of the size of its image. Of an instance with a mask, mmdet takes polygons without a single
    valid one for a region to ignore, and run lengths of another size for something else; here both are errors.

    Args:
        **kwargs: Arguments of the library's `LoadAnnotations`.

    Raises:
        BadDataError: In `transform`.
    """

    def __init__(self, **kwargs) -> None:
        # From the root registry, where the scope of the config decides; from ours it would be this class.
        self.load = MMENGINE_TRANSFORMS.build(dict(type='LoadAnnotations', **kwargs))

    def transform(self, results: dict) -> dict | None:
        if getattr(self.load, 'with_mask', False):
            for instance in results.get('instances', []):
                try:
                    check_segmentation(instance.get('mask'), results['ori_shape'])
                except ValueError as error:
                    # As the annotation file has it, for it to be found there.
                    left, top, right, bottom = instance['bbox']
                    bbox = [round(value, 2) for value in (left, top, right - left, bottom - top)]
                    raise BadDataError(
                        f'bad segmentation in the annotations of the image {results["img_path"]} (image_id '
                        f'{results.get("img_id")}, bbox {bbox}): {error}; {WHAT_TO_DO}'
                    ) from error
        label_map = results.get('seg_map_path') if self.load.with_seg else None
        source = f'label map {label_map}' if label_map else f'annotations of the image {results["img_path"]}'
        try:
            results = self.load(results)
        except FileNotFoundError as error:
            raise BadDataError(f'{source} not found') from error
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise BadDataError(f'cannot read the {source}: {reason}; {WHAT_TO_DO}') from error
        if label_map and results['gt_seg_map'].shape != results['ori_shape']:
            raise BadDataError(
                f'the {source} is of shape {results["gt_seg_map"].shape}, its image of {results["ori_shape"]}; '
                f'{WHAT_TO_DO}'
            )
        return results


def check_segmentation(segmentation: object, shape: tuple[int, int]) -> None:
    """Raise a `ValueError` that says what is wrong with the segmentation of an instance, if anything.

    Args:
        segmentation: As in COCO's annotation files: polygons, a list of lists x1, y1, x2, y2, ... in pixels, or
            run lengths, a dict of `size` (H, W) and `counts`, a list of numbers or COCO's string of them.
        shape: Height and width of the image in pixels.
    """
    if isinstance(segmentation, list):
        try:
            polygons = [np.asarray(polygon, dtype=float) for polygon in segmentation]
        except (TypeError, ValueError) as error:
            raise ValueError('a polygon of other things than numbers') from error
        # Others beside a valid one are left out by mmdet.
        if not any(polygon.ndim == 1 and polygon.size >= 6 and polygon.size % 2 == 0 for polygon in polygons):
            raise ValueError('no polygon of three points or more, as x1, y1, x2, y2, x3, y3')
        # NaN is not less than anything.
        if not all((np.abs(polygon) < MAX_COORDINATE).all() for polygon in polygons):
            raise ValueError('a polygon with a coordinate that is not finite, or far outside of the image')
    elif isinstance(segmentation, dict) and {'size', 'counts'} <= set(segmentation):
        size, counts = segmentation['size'], segmentation['counts']
        if size != list(shape):
            raise ValueError(f'run lengths for a size of {size}, its image is of {list(shape)}')
        counts = read_run_lengths(counts) if isinstance(counts, str) else counts
        # pycocotools leaves the pixels beyond the last run as memory happened to be.
        if not is_list_of(counts, int) or min(counts, default=0) < 0 or sum(counts) != shape[0] * shape[1]:
            raise ValueError(f'run lengths that are not those of {shape[0] * shape[1]} pixels')
    else:
        raise ValueError('neither polygons nor run lengths')


def read_run_lengths(string: str) -> list[int]:
    """The run lengths in COCO's string of them.

    Groups of 5 bits from the lowest, one a character from '0' on, whose sixth bit says that another follows; the
    highest bit of the last is the sign. From the fourth on, what a number exceeds the last but one by.
    """
    counts, value, shift = [], 0, 0
    for code in string.encode():
        group = code - ord('0')
        value |= (group & 31) << shift
        shift += 5
        if not group & 32:
            if group & 16:
                value -= 1 << shift
            counts.append(value + counts[-2] if len(counts) > 2 else value)
            value, shift = 0, 0
    return counts
