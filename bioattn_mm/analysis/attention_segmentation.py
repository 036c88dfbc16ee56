"""Attention as a segmentation: how well the tokens that get most of it are those of the objects.

As in section 4.3 and table 4 of VARS (Shi et al., ICML 2022): the map of a whole image is stretched to 0 to 1,
thresholded, and compared with a mask. Table 5 compares it with where people look.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image

from ..data.formats.label_maps import without_channels
from ..errors import InputError
from ..runtime.paths import images_below
from ..training.config.pipelines import find_datasets
from .images import PreparedImage, stride_of

UNLABELLED = 255  # label of pixels that count neither as foreground nor as background
# What reads the masks of a dataset, at the size of the image file.
LOAD_MASKS = dict(
    mmseg=[dict(type='LoadAnnotations')],
    mmdet=[dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True, with_mask=True)],
)
# End of the names of MIT1003's images of the points that people fixated, which are bright above a half.
FIXATIONS = '_fixPts.jpg'
BRIGHT = 127
BACKGROUND = 'background'  # a class that is no object


@dataclass
class Sample:
    """The file of an image, its pixels of objects, and those that count, both bool (H, W)."""

    image: Path
    foreground: np.ndarray
    labelled: np.ndarray


def above_threshold(values: np.ndarray, threshold: float) -> np.ndarray:
    """The tokens of a map above a part of the way from its least value to its largest, none of a constant map."""
    lowest, highest = values.min(), values.max()
    return values > lowest + threshold * (highest - lowest)


def to_file(values: np.ndarray, image: PreparedImage) -> np.ndarray:
    """A map of tokens, (H, W), at the pixels of the image's file, each with the value of its token."""
    stride = stride_of(values.shape, tuple(image.inputs.shape[2:]))
    height, width = image.pixels.shape[:2]
    pixels = values.repeat(stride, 0).repeat(stride, 1)[:height, :width]
    # Models that leave out the rest of an image have no tokens there.
    pixels = np.pad(pixels, [(0, length - present) for length, present in zip((height, width), pixels.shape)])
    size = image.original_size[::-1]
    return cv2.resize(pixels.astype(np.float32), size, interpolation=cv2.INTER_NEAREST).astype(values.dtype)


def scores(chosen: np.ndarray, sample: Sample) -> dict[str, float]:
    """How the chosen pixels agree with the foreground.

    Returns:
        The Jaccard index (`jaccard`); its mean with that of the background (`miou`); false positives (`fp`) and
        negatives (`fn`) as parts of all pixels that count: the paper does not say of what its rates are.
    """
    chosen, wanted = chosen[sample.labelled], sample.foreground[sample.labelled]
    ious = []
    for one, other in ((chosen, wanted), (~chosen, ~wanted)):
        union = (one | other).sum()
        ious.append(float((one & other).sum() / union) if union else float('nan'))
    fp, fn = float((chosen & ~wanted).mean()), float((~chosen & wanted).mean())
    return dict(jaccard=ious[0], miou=float(np.mean(ious)), fp=fp, fn=fn)


def scanpath_saliency(values: np.ndarray, fixated: np.ndarray) -> float:
    """Normalised scanpath saliency (Peters et al., Vision Research 2005), table 5 of VARS (Shi et al., ICML 2022).

    The mean at the pixels that people looked at, bool (H, W), of a map (H, W) with a mean of 0 and a standard
    deviation of 1: 0 for a map that has nothing to do with them, NaN for a constant one.
    """
    values = values.astype(np.float64)
    deviation = values.std()
    return float((values[fixated].mean() - values.mean()) / deviation) if deviation else float('nan')


def read_fixations(folder: str, fixations: str, limit: int) -> Iterator[Sample]:
    """The first images of a folder with the pixels that people looked at as `foreground`, as MIT1003 has them.

    Args:
        folder: Folder of the images, `ALLSTIMULI` there.
        fixations: Folder of NAME_fixPts.jpg for each image, `ALLFIXATIONMAPS` there.
        limit: Maximum number of images.
    """
    for image in images_below(Path(folder))[:limit]:
        path = Path(fixations, image.stem + FIXATIONS)
        points = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE) if path.is_file() else None
        if points is None:
            raise InputError(f'no fixations of {image}: expected the image {path}')
        with Image.open(image) as file:
            size = file.size
        if points.shape[::-1] != size:
            found, expected = ('{} x {}'.format(*shape) for shape in (points.shape[::-1], size))
            raise InputError(f'{path} has {found} pixels: expected {expected}')
        yield Sample(image, points > BRIGHT, np.ones_like(points, bool))


def read_masks(folder: str, masks: str, limit: int, split: str | None = None) -> Iterator[Sample]:
    """The first images of a folder and the label maps of the same names: 0 is background, 255 does not count.

    Args:
        folder: Folder of the images.
        masks: Folder of the label maps, PNG with one channel or with a palette, as PASCAL VOC's; of colours black is
            background.
        limit: Maximum number of images.
        split: File with a name of an image, without its suffix, in each line; None for all images.
    """
    images = images_below(Path(folder))
    if split is not None:
        if not Path(split).is_file():
            raise InputError(f'no list of images: expected the file {split}')
        names = {line.strip() for line in Path(split).read_text(encoding='utf-8').splitlines()}
        images = [image for image in images if image.stem in names]
        if not images:
            raise InputError(f'no image of {split} is in {folder}')
    for image in images[:limit]:
        path = (Path(masks) / image.relative_to(folder)).with_suffix('.png')
        if not path.is_file():
            raise InputError(f'no label map for {image}: expected {path}')
        try:
            with Image.open(path) as file:
                labels = np.asarray(file)  # of a palette the indices, not the colours
        except OSError as error:
            raise InputError(f'cannot read the label map {path}: damaged, or not an image') from error
        labels = without_channels(labels)
        labels = labels if labels.ndim == 2 else labels.any(2)
        yield Sample(image, (labels != 0) & (labels != UNLABELLED), labels != UNLABELLED)


def read_dataset(config: Config, classes: list[str] | None, limit: int) -> Iterator[Sample]:
    """The first validation images of a config with their label maps (mmseg) or the masks of their objects (mmdet).

    Args:
        config: The config.
        classes: Names of the classes that are foreground; None for all but `BACKGROUND`.
        limit: Maximum number of images.
    """
    settings = next(find_datasets(config.get('val_dataloader')), None)
    if settings is None or config.default_scope not in LOAD_MASKS:
        how = 'take a config of a segmentor or detector, or name folders with --images and --masks'
        raise InputError(f'{config.filename} names no images with masks: {how}')
    init_default_scope(config.default_scope)
    dataset = DATASETS.build(dict(settings, pipeline=LOAD_MASKS[config.default_scope]))
    names = list(dataset.metainfo['classes'])
    unknown = sorted(set(classes or ()) - set(names))
    if unknown:
        raise InputError(f'no class {", ".join(unknown)}: expected some of {", ".join(names)}')
    numbers = [names.index(name) for name in classes or names if name != BACKGROUND]
    for index in range(min(limit, len(dataset))):
        loaded = dataset[index]
        if 'gt_seg_map' in loaded:
            labels = loaded['gt_seg_map']
            yield Sample(Path(loaded['img_path']), np.isin(labels, numbers), labels != UNLABELLED)
        else:
            masks = loaded['gt_masks'].masks[np.isin(loaded['gt_bboxes_labels'], numbers)]
            shape = loaded['ori_shape'][:2]
            yield Sample(Path(loaded['img_path']), masks.any(0).reshape(shape), np.ones(shape, bool))
