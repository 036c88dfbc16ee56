"""Transforms that load images and annotations, whose errors name the bad file."""

import copy
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mmcv.transforms
import numpy as np
from mmcv.transforms import BaseTransform
from mmengine import fileio
from mmengine.dataset import Compose
from mmengine.registry import TRANSFORMS as MMENGINE_TRANSFORMS
from PIL import Image

from ..errors import InputError, first_line
from ..files import other_spelling
from ..registry import TRANSFORMS
from ..runtime.channels import ImageKind, as_input, decode
from .checks import WHAT_TO_DO, BadDataError, check_labels, check_segmentation, labels_of_colours


@TRANSFORMS.register_module()
class CheckedLoadImageFromFile(mmcv.transforms.LoadImageFromFile):
    """mmcv's `LoadImageFromFile` with errors that name the file.

    Raises:
        BadDataError: In `transform`: the image is missing or cannot be decoded.
    """

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
        """What `transform` does, with errors of any kind."""
        return super().transform(results)


@TRANSFORMS.register_module()
class LoadChannelsFromFile(CheckedLoadImageFromFile):
    """Load an image of any number of channels and any depth from a PNG, TIFF or .npy file, see `runtime.channels`.

    `img` is (H, W, channels), in the order of the file: uint8, or float32, which holds the values of uint16, too.

    Args:
        channels: Number of channels that every image must have.
        dtype: dtype that every image must have: 'uint8', 'uint16' or 'float32'.
        **kwargs: Those of mmcv's `LoadImageFromFile`, of which `backend_args` says where files are read.

    Raises:
        BadDataError: In `transform`: the image is missing, cannot be decoded, has other channels or another dtype, or
            values that are not finite.
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

    def __repr__(self) -> str:
        return f'{type(self).__name__}(channels={self.kind.channels}, dtype={self.kind.dtype!r})'


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

    The label map must have the size of its image, and every instance a valid mask. mmdet by itself turns an instance
    without a valid polygon into an ignored region, and accepts run lengths of any size. Of an `ImageMaskDataset`, the
    label map must hold its classes alone, and may be an RGB image. Masks are `BoxedMasks`.

    Args:
        load: The transform that loads, whose masks stay as it loads them. Default: the `LoadAnnotations` of the
            config's default scope.
        **kwargs: Arguments of that `LoadAnnotations`.

    Raises:
        BadDataError: In `transform`: the annotations are missing or damaged.
    """

    def __init__(self, load: BaseTransform | None = None, **kwargs: object) -> None:
        # The root registry builds the class of the config's default scope, such as mmdet.
        self.load = load or MMENGINE_TRANSFORMS.build(dict(type='LoadAnnotations', **kwargs))
        if load is None and getattr(self.load, 'with_mask', False) and self.load.poly2mask:
            from .masks import BoxedLoadAnnotations  # here: it imports mmdet, which mmseg's configs do without

            self.load = BoxedLoadAnnotations(**kwargs)
        elif type(self.load).__module__.startswith('mmseg.'):
            from .label_maps import WideLoadAnnotations  # here: it imports mmseg, which mmdet's configs do without

            self.load = with_class(self.load, WideLoadAnnotations)

    def transform(self, results: dict) -> dict | None:
        if getattr(self.load, 'with_mask', False):
            for instance in results.get('instances', []):
                try:
                    check_segmentation(instance.get('mask'), results['ori_shape'])
                except ValueError as error:
                    # The box is given as in the annotation file (x, y, width, height), so that it can be found there.
                    left, top, right, bottom = instance['bbox']
                    bbox = [round(value, 2) for value in (left, top, right - left, bottom - top)]
                    raise BadDataError(
                        f'bad segmentation in the annotations of the image {results["img_path"]} (image_id '
                        f'{results.get("img_id")}, bbox {bbox}): {error}; {WHAT_TO_DO}'
                    ) from error
        label_map = results.get('seg_map_path') if self.load.with_seg else None
        source = f'label map {label_map}' if label_map else f'annotations of the image {results["img_path"]}'
        with _named(source):
            results = self.load(results)
        if not label_map:
            return results
        try:
            if results.get('label_colours'):
                results['gt_seg_map'] = labels_of_colours(
                    results['gt_seg_map'], results['label_colours'], results['num_classes']
                )
            first = int(bool(results.get('reduce_zero_label')))
            check_labels(results['gt_seg_map'], results['ori_shape'], results.get('num_classes'), first)
        except ValueError as error:
            raise BadDataError(f'the {source} {error}; {WHAT_TO_DO}') from error
        return results


@TRANSFORMS.register_module()
class CheckedLoadPanopticAnnotations(BaseTransform):
    """mmdet's `LoadPanopticAnnotations` with checks, and with errors that name the file.

    The panoptic map must have the size of its image and a pixel of every segment that the annotations list. Masks are
    `BoxedMasks`.

    Args:
        load: The transform that loads. Default: mmdet's `LoadPanopticAnnotations`.
        **kwargs: Its arguments.

    Raises:
        BadDataError: In `transform`: the panoptic map is missing or damaged.
    """

    def __init__(self, load: BaseTransform | None = None, **kwargs: object) -> None:
        # The name has its scope, because mmpretrain and mmseg have no such transform.
        self.load = load or MMENGINE_TRANSFORMS.build(dict(type='mmdet.LoadPanopticAnnotations', **kwargs))
        from .masks import BoxedMasks  # here: see `CheckedLoadAnnotations`

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

    What loads images and annotations is replaced by the transforms above around it, which give the same samples.
    The config that the pipeline was built from stays as it was written.

    Args:
        pipeline: The pipeline of a dataset of mmdet, mmseg or mmpretrain. Changed in place.
    """
    for place, step in enumerate(pipeline.transforms):
        if type(step) is mmcv.transforms.LoadImageFromFile:
            pipeline.transforms[place] = with_class(step, CheckedLoadImageFromFile)
        elif isinstance(step, mmcv.transforms.LoadAnnotations):
            is_panoptic = type(step).__name__ == 'LoadPanopticAnnotations'
            kind = CheckedLoadPanopticAnnotations if is_panoptic else CheckedLoadAnnotations
            pipeline.transforms[place] = kind(step)
        for inner in getattr(step, 'subroutines', ()):  # of TestTimeAug
            name_bad_files(inner)


def with_class(step: BaseTransform, kind: type[BaseTransform]) -> BaseTransform:
    """A copy of a transform as an instance of a subclass of its class that takes the same arguments."""
    step = copy.copy(step)
    step.__class__ = kind
    return step
