"""Predictions drawn over their images, with OpenCV alone."""

from collections.abc import Sequence

import cv2
import numpy as np

from .tasks import Classification, Detections, Segmentation

OPACITY = 0.5  # of classes and masks over the image
FONT = cv2.FONT_HERSHEY_SIMPLEX
BLACK, WHITE = (0, 0, 0), (255, 255, 255)
Color = tuple[int, int, int]


def draw(
    image: np.ndarray,
    result: Segmentation | Detections | Classification,
    classes: Sequence[str],
    palette: Sequence[Color],
    opacity: float,
) -> np.ndarray:
    """Draw a prediction over its image.

    Args:
        image: BGR, uint8 (H, W, 3).
        result: The prediction.
        classes: Names of the classes.
        palette: R, G and B of each class.
        opacity: Of classes and masks.

    Returns:
        BGR, uint8 (H, W, 3).
    """
    colors = [tuple(int(value) for value in color[::-1]) for color in palette]
    if isinstance(result, Segmentation):
        return _draw_labels(image, result.labels, classes, colors, opacity)
    if isinstance(result, Detections):
        return _draw_detections(image, result, classes, colors, opacity)
    drawn = image.copy()
    label = result.label
    _write(drawn, f'{classes[label]} {result.scores[label]:.2f}', (0, 0), colors[label])
    return drawn


def _draw_labels(
    image: np.ndarray, labels: np.ndarray, classes: Sequence[str], colors: Sequence[Color], opacity: float
) -> np.ndarray:
    """Colour every class, and name it where it is widest. Indices without a class stay as they are."""
    found = [index for index in np.unique(labels).tolist() if index < len(classes)]
    colored = image.copy()
    for index in found:
        colored[labels == index] = colors[index]
    drawn = cv2.addWeighted(image, 1 - opacity, colored, opacity, 0)
    for index in found:
        mask = np.pad((labels == index).astype(np.uint8), 1)  # the border of the image counts as a border
        distance = cv2.distanceTransform(mask, cv2.DIST_L2, 3)[1:-1, 1:-1]
        top, left = np.unravel_index(distance.argmax(), distance.shape)
        _write(drawn, classes[index], (int(left), int(top)), colors[index], centered=True)
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
            colored[result.masks[index]] = colors[result.labels[index]]
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
    """Write a name on a plate of its colour, which stays inside the image where it can."""
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
