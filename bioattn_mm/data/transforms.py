"""Transforms: loading with errors that name the bad file, and what mmdet's and mmseg's do in less time."""

import copy
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import mmcv.transforms
import numpy as np
from mmcv.transforms import BaseTransform
from mmengine import fileio
from mmengine.dataset import Compose
from mmengine.registry import TRANSFORMS as MMENGINE_TRANSFORMS
from PIL import Image

from ..errors import InputError, first_line
from ..registry import TRANSFORMS
from ..runtime.files import other_spelling
from ..runtime.images import ImageKind, as_input, decode
from .checks import WHAT_TO_DO, BadDataError, check_segmentation
from .formats.label_maps import check_labels, labels_of_colours


@TRANSFORMS.register_module()
class CheckedLoadImageFromFile(mmcv.transforms.LoadImageFromFile):
    """mmcv's `LoadImageFromFile`, whose `transform` raises a `BadDataError` that names the file."""

    def transform(self, results: dict) -> dict | None:
        try:
            return self.load(results)
        except FileNotFoundError as error:
            spelling = other_spelling(Path(results['img_path']))
            raise BadDataError(f'image not found: {results["img_path"]}' + (spelling and f'; {spelling}')) from error
        except InputError:  # of shards
            raise
        except Exception as error:
            raise BadDataError(
                f'cannot decode the image {results["img_path"]}: damaged, or not an image; {WHAT_TO_DO}'
            ) from error

    def load(self, results: dict) -> dict | None:
        return super().transform(results)


@TRANSFORMS.register_module()
class LoadChannelsFromFile(CheckedLoadImageFromFile):
    """Load an image of any number of channels and any depth from a PNG, TIFF or .npy file, see `runtime.images`.

    `img` is (H, W, channels), in the order of the file: uint8, or float32, which holds the values of uint16, too.
    Values that are not finite are refused.

    Args:
        channels: Number of channels that every image must have.
        dtype: dtype that every image must have: 'uint8', 'uint16' or 'float32'.
        **kwargs: Those of mmcv's `LoadImageFromFile`.
    """

    def __init__(self, channels: int, dtype: str, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.kind = ImageKind(channels, dtype)

    def load(self, results: dict) -> dict:
        path = results['img_path']
        content = fileio.get(path, self.backend_args)
        try:
            image = as_input(self.kind.check(decode(content, path), path))
        except InputError as error:
            raise BadDataError(f'{error}; {WHAT_TO_DO}') from error
        results.update(img=image, img_shape=image.shape[:2], ori_shape=image.shape[:2])
        return results


@contextmanager
def _named(source: str, verb: str = 'read') -> Iterator[None]:
    """Within it errors name the file that is read."""
    try:
        yield
    except FileNotFoundError as error:
        raise BadDataError(f'{source} not found') from error
    except InputError:  # of shards
        raise
    except Exception as error:
        raise BadDataError(f'cannot {verb} the {source}: {first_line(error)}; {WHAT_TO_DO}') from error


@TRANSFORMS.register_module()
class CheckedLoadAnnotations(BaseTransform):
    """`LoadAnnotations` of mmdet or mmseg with checks, and with errors that name the file.

    The label map must have the size of its image, and every instance a valid mask: mmdet by itself turns an instance
    without a valid polygon into an ignored region, and accepts run lengths of any size. Of an `ImageMaskDataset`, the
    label map must hold its classes alone, and may be an RGB image. `transform` raises a `BadDataError`.

    Args:
        load: The transform that loads, whose masks stay as it loads them. Default: the `LoadAnnotations` of the
            config's default scope, with masks as `BoxedMasks`.
        **kwargs: Arguments of that `LoadAnnotations`.
    """

    def __init__(self, load: BaseTransform | None = None, **kwargs: object) -> None:
        self.load = load or MMENGINE_TRANSFORMS.build(dict(type='LoadAnnotations', **kwargs))
        if load is None and getattr(self.load, 'with_mask', False) and self.load.poly2mask:
            from .masks import BoxedLoadAnnotations  # mmseg's configs do without mmdet

            self.load = BoxedLoadAnnotations(**kwargs)
        elif type(self.load).__module__.startswith('mmseg.'):
            from .mmseg_transforms import WideLoadAnnotations  # imported here: it imports mmseg

            self.load = with_class(self.load, WideLoadAnnotations)

    def transform(self, results: dict) -> dict | None:
        path = results['img_path']
        for instance in results.get('instances', []) if getattr(self.load, 'with_mask', False) else ():
            try:
                check_segmentation(instance.get('mask'), results['ori_shape'])
            except ValueError as error:
                # The box is given as in the annotation file (x, y, width, height), so that it can be found there.
                left, top, right, bottom = instance['bbox']
                bbox = [round(value, 2) for value in (left, top, right - left, bottom - top)]
                raise BadDataError(
                    f'bad segmentation in the annotations of the image {path} (image_id {results.get("img_id")}, '
                    f'bbox {bbox}): {error}; {WHAT_TO_DO}'
                ) from error
        label_map = results.get('seg_map_path') if self.load.with_seg else None
        source = f'label map {label_map}' if label_map else f'annotations of the image {path}'
        with _named(source):
            results = self.load(results)
        if not label_map:
            return results
        num_classes, colours = results.get('num_classes'), results.get('label_colours')
        try:
            if colours:
                results['gt_seg_map'] = labels_of_colours(results['gt_seg_map'], colours, num_classes)
            first = int(bool(results.get('reduce_zero_label')))
            check_labels(results['gt_seg_map'], results['ori_shape'], num_classes, first)
        except ValueError as error:
            raise BadDataError(f'the {source} {error}; {WHAT_TO_DO}') from error
        return results


@TRANSFORMS.register_module()
class CheckedLoadPanopticAnnotations(BaseTransform):
    """mmdet's `LoadPanopticAnnotations` with checks, and with errors that name the file; masks are `BoxedMasks`.

    The panoptic map must have the size of its image and a pixel of every segment that the annotations list.
    Arguments are those of `CheckedLoadAnnotations`.
    """

    def __init__(self, load: BaseTransform | None = None, **kwargs: object) -> None:
        self.load = load or MMENGINE_TRANSFORMS.build(dict(type='mmdet.LoadPanopticAnnotations', **kwargs))
        from .masks import BoxedMasks  # imported here, as in `CheckedLoadAnnotations`

        self.boxed = BoxedMasks.from_bitmaps

    def transform(self, results: dict) -> dict | None:
        source = f'panoptic map {results.get("seg_map_path")}'
        with _named(source, 'use'):
            with Image.open(io.BytesIO(fileio.get(results['seg_map_path'], self.load.backend_args))) as image:
                height, width = image.height, image.width
            if (height, width) != tuple(results['ori_shape']):
                raise ValueError(f'it is of shape {(height, width)}, its image of {tuple(results["ori_shape"])}')
            results = self.load(results)
            if self.load.with_mask:
                results['gt_masks'] = self.boxed(results['gt_masks'].masks)
            empty = results['gt_masks'].areas == 0 if self.load.with_mask else np.zeros(0, bool)
            if empty.any():
                ids = [each['id'] for each in results['segments_info'] if each['is_thing']]
                raise ValueError(f'it has no pixel of the segment {ids[empty.argmax()]}')
        return results


def name_bad_files(pipeline: Compose) -> None:
    """Let the errors of a pipeline that was built name the file that cannot be used, also in multi-scale testing.

    What loads images and annotations in the pipeline, of mmdet, mmseg or mmpretrain, is replaced in place by the
    transforms above around it, which give the same samples; the config stays as it was written.
    """
    for place, step in enumerate(pipeline.transforms):
        if type(step) is mmcv.transforms.LoadImageFromFile:
            pipeline.transforms[place] = with_class(step, CheckedLoadImageFromFile)
        elif isinstance(step, mmcv.transforms.LoadAnnotations):
            is_panoptic = type(step).__name__ == 'LoadPanopticAnnotations'
            kind = CheckedLoadPanopticAnnotations if is_panoptic else CheckedLoadAnnotations
            pipeline.transforms[place] = kind(step)
        for inner in getattr(step, 'subroutines', ()):  # TestTimeAug has its steps in these
            name_bad_files(inner)


def with_class(step: BaseTransform, kind: type[BaseTransform]) -> BaseTransform:
    """A copy of a transform as an instance of a subclass of its class that takes the same arguments."""
    step = copy.copy(step)
    step.__class__ = kind
    return step


def in_order(image: np.ndarray) -> np.ndarray:
    """The same pixels, (H, W) or (H, W, C), with rows and columns in the order in which they are in memory.

    mmcv flips an image by reading it backwards, which makes every later copy of it several times slower.
    """
    vertical, horizontal = (stride < 0 for stride in image.strides[:2])
    if not (vertical or horizontal):
        return image
    forwards = image[:: -1 if vertical else 1, :: -1 if horizontal else 1]
    return cv2.flip(forwards, -1 if vertical and horizontal else int(horizontal))


@TRANSFORMS.register_module()
class InOrderRandomFlip(BaseTransform):
    """`RandomFlip` of the default scope, whose image and label map are in order in memory (see `in_order`)."""

    def __init__(self, **kwargs: object) -> None:
        self.flip = MMENGINE_TRANSFORMS.build(dict(type='RandomFlip', **kwargs))

    def transform(self, results: dict) -> dict | None:
        results = self.flip(results)
        for key in ('img', 'gt_seg_map'):
            if results.get(key) is not None:
                results[key] = in_order(results[key])
        return results


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
