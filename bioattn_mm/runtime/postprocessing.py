"""What becomes of the outputs of an exported model: label maps, detections, probabilities."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import cv2
import numpy as np

from .predictions import Classification, Detections, Segmentation

Size = tuple[int, int]
Run = Callable[[np.ndarray], dict[str, np.ndarray]]


def padded(inputs: np.ndarray, minimum: Size = (1, 1), multiple: int = 1) -> np.ndarray:
    """Inputs, (B, 3, H, W), with zeros at the bottom and right up to a minimum (height, width) and multiples."""
    sides = [-(-max(pair) // multiple) * multiple for pair in zip(inputs.shape[2:], minimum)]
    missing = [(0, side - length) for side, length in zip(sides, inputs.shape[2:])]
    return np.pad(inputs, ((0, 0), (0, 0), *missing)) if any(map(any, missing)) else inputs


def whole(run: Run, inputs: np.ndarray, align_corners: bool, **takes: object) -> np.ndarray:
    """Logits of a segmentor in every pixel of its inputs: (B, 3, H, W) to (B, classes, H, W).

    Inputs of a size that the model does not take are `padded` to one that it `takes`, and the rest is cut off.
    """
    height, width = inputs.shape[2:]
    inputs = padded(inputs, **takes)
    (logits,) = run(inputs).values()
    resized = [resize_maps(maps, inputs.shape[2:], align_corners) for maps in logits]
    return np.stack(resized)[:, :, :height, :width]


def slide(
    run: Run,
    inputs: np.ndarray,
    crop_size: Size,
    stride: Size,
    align_corners: bool,
    batch_size: int = 1,
    **takes: object,
) -> np.ndarray:
    """The same from windows, averaged where they overlap, as mmseg's `slide_inference`.

    Args:
        run: Runs the model.
        inputs: (B, 3, H, W).
        crop_size: (height, width) of the windows, which are smaller where the input is.
        stride: Distance of the windows; the last of a row or column ends with the input and may overlap more.
        align_corners: Of the resize to the window.
        batch_size: Windows that the model takes at once.
        **takes: What sizes the model takes, see `padded`.
    """
    number, _, *size = inputs.shape
    axes = []
    for length, side, step in zip(size, crop_size, stride):
        last = max(length - side, 0)
        starts = [*range(0, last, step), last]
        axes.append([slice(start, min(start + side, length)) for start in starts])
    places = [(index, window) for window in itertools.product(*axes) for index in range(number)]
    total, count = None, np.zeros(size, np.float32)
    for first in range(0, len(places), batch_size):
        batch = places[first : first + batch_size]
        crops = np.stack([inputs[index][:, rows, columns] for index, (rows, columns) in batch])
        logits = whole(run, crops, align_corners, **takes)
        if total is None:
            total = np.zeros((number, logits.shape[1], *size), np.float32)
        for (index, window), maps in zip(batch, logits):
            total[(index, slice(None), *window)] += maps
            if index == 0:
                count[window] += 1
    return total / count


def resize_maps(maps: np.ndarray, size: Sequence[int], align_corners: bool = False) -> np.ndarray:
    """Resize maps bilinearly, float32 (C, h, w) to (C, H, W), as PyTorch does: without a filter where it shrinks."""
    if maps.shape[1:] == tuple(size):
        return maps
    return np.stack(list(_resized(maps, size, align_corners)))


def labels_of(logits: np.ndarray, size: Sequence[int], align_corners: bool) -> np.ndarray:
    """Index of the highest of the resized maps in each pixel, int64 (H, W); holds two of them in memory at a time."""
    labels, highest = np.zeros(tuple(size), np.int64), None
    for index, resized in enumerate(_resized(logits, size, align_corners)):
        if highest is None:
            highest = resized.copy()
            continue
        higher = resized > highest
        labels[higher] = index
        np.maximum(highest, resized, out=highest)
    return labels


def _resized(maps: np.ndarray, size: Sequence[int], align_corners: bool) -> Iterator[np.ndarray]:
    height, width = size
    for one in maps:
        if one.shape == (height, width):
            yield one
        elif not align_corners:
            yield cv2.resize(one, (width, height), interpolation=cv2.INTER_LINEAR)
        else:
            yield _between_corners(_between_corners(one, height).T, width).T


def _between_corners(rows: np.ndarray, number: int) -> np.ndarray:
    """Resize the first axis so that the first and the last element stay where they are, which OpenCV cannot."""
    position = np.linspace(0, len(rows) - 1, number, dtype=np.float32) if number > 1 else np.zeros(1, np.float32)
    lower = position.astype(np.int64)
    weight = (position - lower).astype(np.float32)[:, None]
    return rows[lower] * (1 - weight) + rows[np.minimum(lower + 1, len(rows) - 1)] * weight


def segmentation(
    logits: np.ndarray, prepared_size: Size, size: Size, settings: dict, return_logits: bool
) -> Segmentation:
    """The prediction for an image of a size (height, width) from its logits, (classes, H, W).

    Args:
        logits: Of the model's input.
        prepared_size: (height, width) of the image in the input, without padding.
        size: That of the image.
        settings: `postprocessing` of the description.
        return_logits: Whether the prediction has the logits.
    """
    height, width = prepared_size
    logits, align_corners = logits[:, :height, :width], settings.get('align_corners', False)
    if len(logits) == 1:
        probability = 1 / (1 + np.exp(-resize_maps(logits, size, align_corners)))
        return Segmentation((probability[0] > settings['threshold']).astype(np.int64), probability)
    if not return_logits:
        return Segmentation(labels_of(logits, size, align_corners))
    logits = resize_maps(logits, size, align_corners)
    return Segmentation(logits.argmax(0), logits)


def detections(outputs: dict[str, np.ndarray], prepared_size: Size, size: Size, settings: dict) -> Detections:
    """The prediction for an image from the outputs of a detector.

    Args:
        outputs: `boxes` (N, 4), `scores` (N,) and `labels` (N,), or with the scores as a fifth column `dets` (N, 5),
            and maybe `masks` (N, h, w).
        prepared_size, size, settings: As in `segmentation`.
    """
    if 'dets' in outputs:
        outputs = dict(outputs, boxes=outputs['dets'][:, :4], scores=outputs['dets'][:, 4])
    kept = outputs['scores'] > settings.get('score_thr', 0)
    kept[settings.get('max_per_img', len(kept)) :] = False
    factors = np.float32([own / other for own, other in zip(size, prepared_size)])[[1, 0, 1, 0]]
    boxes = (outputs['boxes'][kept] * factors).astype(np.float32)
    boxes = np.clip(boxes, 0, np.float32([size[1], size[0]] * 2))
    masks = None
    if 'masks' in outputs:
        threshold = settings.get('mask_thr_binary', 0.5)
        masks = np.zeros((len(boxes), *size), bool)
        for pixels, mask, box in zip(masks, outputs['masks'][kept], boxes):
            paste(mask, box, pixels, threshold)
    return Detections(boxes, outputs['scores'][kept], outputs['labels'][kept].astype(np.int64), masks)


def paste(mask: np.ndarray, box: np.ndarray, pixels: np.ndarray, threshold: float) -> None:
    """Mark the pixels of an object, bool (H, W): probabilities (h, w) in a box, resized bilinearly into it.

    Outside of the box the probability falls to 0 within a cell of the mask, as in mmdet.
    """
    padded = np.pad(mask.astype(np.float32), 1)
    axes = []
    for start, end, length, cells in (
        (box[1], box[3], pixels.shape[0], mask.shape[0]),
        (box[0], box[2], pixels.shape[1], mask.shape[1]),
    ):
        if end <= start:
            return
        margin = (end - start) / cells
        first, last = max(int(start - margin), 0), min(int(np.ceil(end + margin)) + 1, length)
        # Positions are counted in cells of the padded mask, whose centres are 0, 1, ...
        position = (np.arange(first, last) + 0.5 - start) / (end - start) * cells - 0.5 + 1
        inside = (position > 0) & (position < cells + 1)
        lower = np.clip(position.astype(np.int64), 0, cells)
        axes.append((first, last, inside, lower, position - lower))
    (top, bottom, rows_inside, row, below), (left, right, columns_inside, column, beside) = axes
    values = padded[row] * (1 - below)[:, None] + padded[row + 1] * below[:, None]
    values = values[:, column] * (1 - beside) + values[:, column + 1] * beside
    values *= rows_inside[:, None] & columns_inside
    pixels[top:bottom, left:right] = values >= threshold


def classification(logits: np.ndarray) -> Classification:
    """The prediction for an image from the logits of a classifier, (classes,)."""
    exponentials = np.exp(logits - logits.max())
    return Classification(exponentials / exponentials.sum())
