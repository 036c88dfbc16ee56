"""Label maps: decoding them with the values that the file has, and counting the pixels of each class."""

import io
from collections.abc import Mapping
from pathlib import Path

import mmcv
import numpy as np
from mmengine import fileio
from mmseg.datasets import BaseSegDataset
from mmseg.datasets.transforms import LoadAnnotations
from PIL import Image, UnidentifiedImageError

from ..errors import InputError
from .checks import IGNORED, WHAT_TO_DO, BadDataError, labels_of_colours, wrong_value

COLOUR_KIND, VALUE_KIND = 'label map of other colours', 'label out of range'


def read_label_map(path: str | Path, backend_args: dict | None = None) -> np.ndarray:
    """The values of a label map as they are in the file: (H, W), or (H, W, C) if it is a colour image, in RGB.

    Args:
        path: The file.
        backend_args: Where mmengine reads it.

    Raises:
        Exception: It cannot be read; damaged files raise errors of many kinds.
    """
    try:
        with Image.open(io.BytesIO(fileio.get(path, backend_args))) as image:
            return np.asarray(image)
    except UnidentifiedImageError as error:  # whose message names the object
        raise ValueError('it is no image, or of a type that cannot be read') from error


def without_channels(labels: np.ndarray) -> np.ndarray:
    """A label map (H, W) of one that was saved as an image: grey with alpha, or three equal channels.

    Args:
        labels: (H, W) or (H, W, C); of four channels, and of two, the last one is alpha.

    Returns:
        (H, W), or (H, W, 3) if the colours tell the classes.
    """
    if labels.ndim == 3:
        labels = labels[..., : 1 if labels.shape[2] in (1, 2) else 3]
        if (labels == labels[..., :1]).all():
            return labels[..., 0]
    return labels


def count_labels(
    info: Mapping, labels: np.ndarray, num_classes: int, ignored: int
) -> tuple[np.ndarray | None, list[tuple[str, str]]]:
    """Count the pixels of each class in a label map.

    Args:
        info: What a dataset of mmseg says of it: `reduce_zero_label`, `label_map`, and of an `ImageMaskDataset`
            `label_colours`.
        labels: Its values, as `read_label_map` gives them.
        num_classes: Number of classes.
        ignored: Value of the pixels that do not count.

    Returns:
        (num_classes,) int64, or None if it holds something else than labels; and what is wrong, kinds and details.
    """
    if info.get('label_colours'):
        try:
            labels = labels_of_colours(labels[..., 2::-1], info['label_colours'], num_classes)
        except ValueError as error:
            return None, [(COLOUR_KIND, str(error))]
    labels = without_channels(labels)
    if labels.ndim != 2 or labels.dtype.kind not in 'bui':
        kind = f'shape {labels.shape}, {labels.dtype}'
        return None, [('label map of another kind', f'{kind}: expected one integer a pixel')]
    if labels.dtype.itemsize <= 2 and labels.dtype.kind in 'bu':  # many times faster than `unique`
        numbers = np.bincount(labels.ravel())
        values = np.flatnonzero(numbers)
        numbers = numbers[values]
    else:
        values, numbers = np.unique(labels, return_counts=True)
    counts, wrong = np.zeros(num_classes, np.int64), []
    first = int(bool(info.get('reduce_zero_label')))
    for value, number in zip(values.tolist(), numbers.tolist()):
        if value == ignored or 0 <= value < first:
            continue
        label = value - first
        label = (info.get('label_map') or {}).get(label, label)
        if 0 <= label < num_classes:
            counts[label] += number
        elif label != ignored:
            expected = f'{first} to {num_classes - 1 + first}, or {ignored}'
            wrong.append((VALUE_KIND, f'{number} pixels are {value}: expected {expected}'))
    return counts, wrong


def counts_of(dataset: BaseSegDataset, index: int) -> tuple[np.ndarray | None, list[tuple[str, str]]] | None:
    """What `count_labels` says of a label map of a dataset; None if it cannot be read."""
    info = dataset.get_data_info(index)
    try:
        labels = read_label_map(info['seg_map_path'], dataset.backend_args)
    except Exception:  # of many kinds; the file is named when it is loaded
        return None
    return count_labels(info, labels, len(dataset.metainfo['classes']), dataset.ignore_index)


class WideLoadAnnotations(LoadAnnotations):
    """mmseg's `LoadAnnotations`, which refuses values beyond 8 bits, where mmseg takes 256 for 0.

    A label map of one row, column or pixel keeps its shape.

    Raises:
        BadDataError: In `transform`: the label map has such values.
    """

    def _load_seg_map(self, results: dict) -> None:
        path = results['seg_map_path']
        content = fileio.get(path, backend_args=self.backend_args)
        labels = mmcv.imfrombytes(content, flag='unchanged', backend=self.imdecode_backend)
        if labels.ndim == 3:
            labels = labels[..., :3] if results.get('label_colours') else without_channels(labels)
        if labels.dtype.kind not in 'bui':
            raise BadDataError(f'the label map {path} has values of {labels.dtype}, expected integers; {WHAT_TO_DO}')
        reduce_zero_label = results['reduce_zero_label']
        if self.reduce_zero_label not in (None, reduce_zero_label):
            raise InputError(
                f'LoadAnnotations has reduce_zero_label={self.reduce_zero_label}, its dataset {reduce_zero_label}: '
                'expected the same'
            )
        if labels.dtype.itemsize > 1:
            beyond = labels[(labels < 0) | (labels > IGNORED)]
            if beyond.size:
                reason = wrong_value(int(beyond[0]), results.get('num_classes'), int(bool(reduce_zero_label)))
                raise BadDataError(f'the label map {path} {reason}; {WHAT_TO_DO}')
        labels = labels.astype(np.uint8)
        table = np.arange(256, dtype=np.uint8)
        if reduce_zero_label:
            table[1:IGNORED] -= 1
            table[0] = IGNORED
        before = table.copy()
        for old, new in (results.get('label_map') or {}).items():
            table[before == old] = new
        results['gt_seg_map'] = table[labels] if labels.ndim == 2 else labels  # colours are no labels yet
        results['seg_fields'].append('gt_seg_map')
