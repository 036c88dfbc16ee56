"""Predictions drawn over their images, with OpenCV alone."""

import math
from collections.abc import Sequence
from dataclasses import replace

import cv2
import numpy as np

from .predictions import INSTANCE_OFFSET, Detections, Panoptic, Result, Segmentation, resized_labels

OPACITY = 0.5  # of classes and masks over the image
# Larger images are drawn with so many pixels: a frame of 8K video, 7680 x 4320, is drawn as it is.
MAX_PIXELS = 2**25
# Pixels of the label map in which places for the names are looked for; a larger one is made smaller.
MAX_SOUGHT = 2**20
FONT = cv2.FONT_HERSHEY_SIMPLEX
BLACK, WHITE = (0, 0, 0), (255, 255, 255)
Color = tuple[int, int, int]


def draw(
    image: np.ndarray,
    result: Result,
    classes: Sequence[str],
    palette: Sequence[Color],
    opacity: float,
    size: tuple[int, int] | None = None,
) -> np.ndarray:
    """Draw a prediction over its image.

    Args:
        image: BGR, uint8 (H, W, 3).
        result: The prediction.
        classes: Names of the classes; of empty ones none is written.
        palette: R, G and B of each class.
        opacity: Of classes and masks.
        size: (height, width) in whose pixels boxes are; None for that of the image.

    Returns:
        BGR, uint8 (H, W, 3), of an image with more than `MAX_PIXELS` smaller.
    """
    colors = [tuple(int(value) for value in color[::-1]) for color in palette]
    size, image = size or image.shape[:2], reduced(image)
    drawn_size = image.shape[:2]
    if isinstance(result, Segmentation):
        return _draw_labels(image, resized_labels(result.labels, drawn_size), classes, colors, opacity)
    if isinstance(result, Panoptic):
        return _draw_segments(image, resized_labels(result.segments, drawn_size), classes, colors, opacity)
    if isinstance(result, Detections):
        factors = np.float32([new / old for new, old in zip(drawn_size, size)])[[1, 0, 1, 0]]
        result = replace(result, boxes=result.boxes * factors)
        return _draw_detections(image, result, classes, colors, opacity)
    drawn = image.copy()
    label = result.label
    _write(drawn, f'{classes[label]} {result.scores[label]:.2f}', (0, 0), colors[label])
    return drawn


def reduced(image: np.ndarray) -> np.ndarray:
    """An image in the size of its drawing."""
    height, width = image.shape[:2]
    factor = (MAX_PIXELS / (height * width)) ** 0.5
    if factor >= 1:
        return image
    size = max(1, int(width * factor)), max(1, int(height * factor))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA)


def _draw_segments(
    image: np.ndarray, segments: np.ndarray, classes: Sequence[str], colors: Sequence[Color], opacity: float
) -> np.ndarray:
    """Colour every segment as its class and name it, with lines between segments."""
    found, numbers = np.unique(segments, return_inverse=True)
    labels = found % INSTANCE_OFFSET
    is_segment = labels < len(classes)
    labels = labels[is_segment].tolist()
    table = np.full(len(found), len(labels))
    table[is_segment] = np.arange(len(labels))
    names, colors = ([values[label] for label in labels] for values in (classes, colors))
    return _draw_labels(image, table[numbers.reshape(segments.shape)], names, colors, opacity, has_lines=True)


def _draw_labels(
    image: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[str],
    colors: Sequence[Color],
    opacity: float,
    has_lines: bool = False,
) -> np.ndarray:
    """Colour every class, and name it where it is widest. Indices without a class stay as they are."""
    found = [index for index in np.flatnonzero(np.bincount(labels.ravel())).tolist() if index < len(classes)]
    colored = image.copy()
    for index in found:
        colored[labels == index] = colors[index]
    if has_lines:
        colored[1:][labels[1:] != labels[:-1]] = WHITE
        colored[:, 1:][labels[:, 1:] != labels[:, :-1]] = WHITE
    drawn = cv2.addWeighted(image, 1 - opacity, colored, opacity, 0)
    step = math.ceil((labels.size / MAX_SOUGHT) ** 0.5)
    labels = labels[::step, ::step]
    for index in np.intersect1d(found, labels).tolist():
        mask = np.pad((labels == index).astype(np.uint8), 1)  # the border of the image counts as a border
        distance = cv2.distanceTransform(mask, cv2.DIST_L2, 3)[1:-1, 1:-1]
        top, left = np.unravel_index(distance.argmax(), distance.shape)
        _write(drawn, classes[index], (int(left) * step, int(top) * step), colors[index], centered=True)
    return drawn


def _draw_detections(
    image: np.ndarray, result: Detections, classes: Sequence[str], colors: Sequence[Color], opacity: float
) -> np.ndarray:
    """Masks, boxes, and names with scores; those with the highest score on top."""
    drawn = image.copy()
    order = np.argsort(result.scores)
    if result.masks is not None:
        colored = image.copy()
        for index in order:
            colored[resized_labels(result.masks[index], image.shape[:2])] = colors[result.labels[index]]
        drawn = cv2.addWeighted(image, 1 - opacity, colored, opacity, 0)
    for index in order:
        left, top, right, bottom = (int(round(value)) for value in result.boxes[index].tolist())
        color = colors[result.labels[index]]
        cv2.rectangle(drawn, (left, top), (right, bottom), color, _line_width(image))
        _write(drawn, f'{classes[result.labels[index]]} {result.scores[index]:.2f}', (left, top), color)
    return drawn


def _line_width(image: np.ndarray) -> int:
    return max(1, round(min(image.shape[:2]) / 300))


def _write(drawn: np.ndarray, text: str, position: tuple[int, int], color: Color, centered: bool = False) -> None:
    """Write a name, if there is one, on a plate of its colour, which stays inside the image where it can."""
    if not text:
        return
    scale, thickness = max(0.35, min(drawn.shape[:2]) / 1000), _line_width(drawn)
    (width, height), baseline = cv2.getTextSize(text, FONT, scale, thickness)
    height += baseline
    left, top = (position[0] - width // 2, position[1] - height // 2) if centered else position
    left, top = (
        max(min(start, length - side), 0)
        for start, length, side in ((left, drawn.shape[1], width), (top, drawn.shape[0], height))
    )
    cv2.rectangle(drawn, (left, top), (left + width, top + height), color, cv2.FILLED)
    brightness = float(np.dot(color, (0.114, 0.587, 0.299)))
    ink = BLACK if brightness > 140 else WHITE
    cv2.putText(drawn, text, (left, top + height - baseline), FONT, scale, ink, thickness, cv2.LINE_AA)
