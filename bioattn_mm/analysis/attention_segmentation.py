"""Attention as a segmentation: how well the tokens that get most of it are those of the objects.

As in section 4.3 and table 4 of VARS (Shi et al., ICML 2022): the map of a whole image is stretched to 0 to 1,
thresholded, and compared with a mask. Table 5 compares it with where people look.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image

from ..errors import InputError
from ..layers.attention_maps import AttentionMap, Recording, whole_attention
from ..layers.locality import MAX_NUMEL, choose_queries
from ..run_config.pipelines import find_datasets
from ..runtime.inputs import images_below
from .images import PreparedImage, stride_of

# Label of pixels that count neither as foreground nor as background.
UNLABELLED = 255
# What reads the masks of a dataset, at the size of the image file.
LOAD_MASKS = dict(
    mmseg=[dict(type='LoadAnnotations')],
    mmdet=[dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True, with_mask=True)],
)
# End of the names of MIT1003's images of the points that people fixated, which are bright above a half.
FIXATIONS = '_fixPts.jpg'
BRIGHT = 127
# Name of a class that is no object.
BACKGROUND = 'background'


@dataclass
class Sample:
    """An image with its mask.

    Attributes:
        image: File of the image.
        foreground: Pixels of objects, bool (H, W).
        labelled: Pixels that count, bool (H, W).
    """

    image: Path
    foreground: np.ndarray
    labelled: np.ndarray


@torch.no_grad()
def attention_received(recording: Recording, num_queries: int | None = None) -> np.ndarray:
    """The attention that each token gets, the mean over the queries: (heads, H, W), none negative.

    Of TransNeXt that is what it gets in windows and as a part of pooled tokens. Of VARS it is how strongly the token
    is reconstructed by the last step, as in the paper, for which a weight of a pair of tokens is no share.

    Args:
        recording: The layer and what went into it, of one image.
        num_queries: See `choose_queries`.
    """
    layer = recording.layer
    if hasattr(layer, 'reconstruction_norms'):
        return layer.reconstruction_norms(*recording.inputs)[-1, 0].float().cpu().numpy()
    queries = choose_queries(recording, num_queries)
    total = 0
    for chunk in queries.split(max(1, MAX_NUMEL // recording.tokens.numel())):
        for part in whole_attention(recording.maps(chunk)):
            total = total + _on_grid(part, recording.grid)
    return total / len(queries)


def _on_grid(part: AttentionMap, grid: tuple[int, int]) -> np.ndarray:
    """The sum of a map over its queries, at the places of the grid: (heads, H, W)."""
    weights = part.weights[0].abs().float()  # (heads, queries, R, C)
    height, width = grid
    if part.rows.is_floating_point():  # pooled tokens, of which each token has a part
        pooled = weights.sum(1).cpu().numpy()
        share = pooled.shape[1] * pooled.shape[2] / (height * width)
        return np.stack([cv2.resize(p, (width, height), interpolation=cv2.INTER_NEAREST) for p in pooled]) * share
    rows, columns = (places.expand(weights.shape[1], -1) for places in (part.rows, part.columns))
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None]
    places = (rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None]).flatten()
    total = weights.new_zeros(len(weights), height * width)
    total.index_add_(1, places, (weights * inside).flatten(1))
    return total.unflatten(1, grid).cpu().numpy()


def above_threshold(values: np.ndarray, threshold: float) -> np.ndarray:
    """The tokens above a part of the way from the least value to the largest: bool, of the shape of `values`.

    Args:
        values: Any numbers, (H, W); of a constant map no token is chosen.
        threshold: The part, 0.3 in VARS's table 4.
    """
    lowest, highest = values.min(), values.max()
    return values > lowest + threshold * (highest - lowest)


def to_file(values: np.ndarray, image: PreparedImage, grid: tuple[int, int]) -> np.ndarray:
    """A map of tokens, (H, W), at the pixels of the image's file, each with the value of its token."""
    stride = stride_of(grid, tuple(image.inputs.shape[2:]))
    height, width = image.pixels.shape[:2]
    pixels = values.repeat(stride, 0).repeat(stride, 1)[:height, :width]
    # Models that leave out the rest of an image have no tokens there.
    pixels = np.pad(pixels, [(0, length - present) for length, present in zip((height, width), pixels.shape)])
    size = image.original_size[::-1]
    return cv2.resize(pixels.astype(np.float32), size, interpolation=cv2.INTER_NEAREST).astype(values.dtype)


def scores(chosen: np.ndarray, sample: Sample) -> dict[str, float]:
    """How the chosen pixels agree with the foreground.

    Returns:
        The Jaccard index (`jaccard`); its mean with that of the background (`miou`); the pixels that are chosen and
        no foreground (`fp`), and those of the foreground that are not chosen (`fn`), as parts of all that count. The
        paper calls its FP and FN rates and does not say of what.
    """
    ious = []
    for found, wanted in ((chosen, sample.foreground), (~chosen, ~sample.foreground)):
        union = ((found | wanted) & sample.labelled).sum()
        ious.append(float((found & wanted & sample.labelled).sum() / union) if union else float('nan'))
    fp, fn = (
        float((part & sample.labelled).sum() / sample.labelled.sum())
        for part in (chosen & ~sample.foreground, ~chosen & sample.foreground)
    )
    return dict(jaccard=ious[0], miou=float(np.mean(ious)), fp=fp, fn=fn)


def scanpath_saliency(values: np.ndarray, fixated: np.ndarray) -> float:
    """Normalised scanpath saliency (Peters et al., Vision Research 2005), table 5 of VARS.

    Args:
        values: How much attention each pixel gets, (H, W).
        fixated: Pixels that people looked at, bool (H, W).

    Returns:
        The mean at these pixels of the map, normalised to a mean of 0 and a standard deviation of 1: 0 for a map that
        has nothing to do with them. NaN for a constant map.
    """
    values = values.astype(np.float64)
    deviation = values.std()
    return float((values[fixated].mean() - values.mean()) / deviation) if deviation else float('nan')


def read_fixations(folder: str, fixations: str, limit: int) -> Iterator[Sample]:
    """Images of a folder with the pixels that people looked at as `foreground`, in the layout of MIT1003.

    Args:
        folder: Folder of the images, `ALLSTIMULI` there.
        fixations: Folder of NAME_fixPts.jpg for each image, `ALLFIXATIONMAPS` there.
        limit: Maximum number of images.

    Raises:
        InputError: A folder has no images, or an image has no fixations of its size.
    """
    for image in images_below(Path(folder))[:limit]:
        path = Path(fixations, image.stem + FIXATIONS)
        points = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE) if path.is_file() else None
        if points is None:
            raise InputError(f'no fixations of {image}: expected the image {path}')
        with Image.open(image) as file:
            size = file.size
        if points.shape[::-1] != size:
            raise InputError(
                f'{path} has {points.shape[1]} x {points.shape[0]} pixels: expected {size[0]} x {size[1]}'
            )
        yield Sample(image, points > BRIGHT, np.ones_like(points, bool))


def read_masks(folder: str, masks: str, limit: int, split: str | None = None) -> Iterator[Sample]:
    """Images of a folder and the label maps of the same names: 0 is background, 255 does not count.

    Args:
        folder: Folder of the images.
        masks: Folder of the label maps, PNG with one channel or with a palette, as PASCAL VOC's.
        limit: Maximum number of images.
        split: File with a name of an image, without its suffix, in each line; None for all images.

    Raises:
        InputError: A folder has no images, or an image has no label map.
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
        labels = labels if labels.ndim == 2 else labels.max(2)
        yield Sample(image, (labels != 0) & (labels != UNLABELLED), labels != UNLABELLED)


def read_dataset(config: Config, classes: list[str] | None, limit: int) -> Iterator[Sample]:
    """Validation images of a config with their label maps (mmseg) or the masks of their objects (mmdet).

    Args:
        config: The config.
        classes: Names of the classes that are foreground; None for all but `BACKGROUND`.
        limit: Maximum number of images.

    Raises:
        InputError: The config has no such images, or there is no such class.
    """
    settings = next(find_datasets(config.get('val_dataloader')), None)
    if settings is None or config.default_scope not in LOAD_MASKS:
        raise InputError(
            f'{config.filename} names no images with masks: take a config of a segmentor or detector, or name '
            'folders with --images and --masks'
        )
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
