"""Pictures and legends of the page: NumPy arrays and HTML. All images are RGB, uint8 (H, W, 3)."""

import base64
import html
from collections.abc import Sequence

import cv2
import numpy as np

from ..analysis.figures import COLORS
from ..inference import Predictor
from ..runtime.drawing import draw
from ..runtime.formats import outline
from ..runtime.predictions import INSTANCE_OFFSET, Detections, Panoptic, Result, Segmentation, resized_labels

# Longer side of the pictures, in pixels. Small images are enlarged: browsers would show them small.
LONGER_SIDE = 800
# Outlines of classes, which the pointer shows, follow a picture in steps of this many pixels.
STEP = 2
# Contributions of single pixels to a receptive field are noisy: the mean of blocks of this side, in pixels, is shown.
BLOCK = 4
# And they span orders of magnitude: below this fraction of the largest one they look alike.
DARKEST = 1e-3
MARK = (80, 255, 120)


def fitted_size(size: tuple[int, int]) -> tuple[int, int]:
    """Size (height, width) of the picture of an image: its longer side is `LONGER_SIDE`."""
    return tuple(max(1, round(length * LONGER_SIDE / max(size))) for length in size)


def fit(image: np.ndarray) -> np.ndarray:
    """Scale an image to its `fitted_size`."""
    height, width = fitted_size(image.shape[:2])
    interpolation = cv2.INTER_AREA if height < image.shape[0] else cv2.INTER_CUBIC
    return cv2.resize(image, (width, height), interpolation=interpolation)


def file_pixel(place: tuple[int, int], picture: tuple[int, int], image: tuple[int, int]) -> tuple[int, int]:
    """Row and column in an image of a place (row, column) in a picture of it; sizes are (height, width)."""
    pixels = (int((p + 0.5) * i / s) for p, s, i in zip(place, picture, image))
    return tuple(min(max(pixel, 0), length - 1) for pixel, length in zip(pixels, image))


def draw_prediction(
    picture: np.ndarray, result: Result, size: tuple[int, int], predictor: Predictor, opacity: float
) -> np.ndarray:
    """A prediction for an image of a size (height, width) as a layer over a picture of it, of opacity 0 to 1."""
    # The legend names the classes of a segmentor.
    names = [''] * len(predictor.classes) if isinstance(result, Segmentation) else predictor.classes
    inside = 0.5 if isinstance(result, Detections) else 1.0
    bgr = np.ascontiguousarray(picture[..., ::-1])
    layer = draw(bgr, result, names, predictor.palette, inside, size)
    return cv2.addWeighted(np.ascontiguousarray(layer[..., ::-1]), opacity, picture, 1 - opacity, 0)


def with_names(picture: np.ndarray, result: Result, size: tuple[int, int], classes: Sequence[str]) -> str:
    """HTML of a picture of an image of a size (height, width): the pointer shows classes, with score or share."""
    height, width = picture.shape[:2]
    grid = -(-height // STEP), -(-width // STEP)
    if isinstance(result, Detections):
        y, x = np.indices(grid) * np.divide(size, grid)[:, None, None]
        boxes = [(left <= x) & (x < right) & (top <= y) & (y < bottom) for left, top, right, bottom in result.boxes]
        masks = boxes if result.masks is None else [resized_labels(mask, grid) for mask in result.masks]
        texts = [f'{classes[label]} {score:.2f}' for label, score in zip(result.labels, result.scores)]
    else:
        labels = resized_labels(result.labels if isinstance(result, Segmentation) else result.segments, grid)
        found = [index for index in np.unique(labels) if index % INSTANCE_OFFSET < len(classes)]
        masks = [labels == index for index in found]
        texts = [f'{classes[index % INSTANCE_OFFSET]} {100 * mask.mean():.1f} %' for index, mask in zip(found, masks)]
    # The smallest lie on top.
    shapes = [
        f'<polygon points="{" ".join(map(str, (STEP * outline(masks[index])).ravel()))}"><title>'
        f'{html.escape(texts[index])}</title></polygon>'
        for index in np.argsort([-mask.sum() for mask in masks], kind='stable')
    ]
    png = base64.b64encode(cv2.imencode('.png', picture[..., ::-1])[1]).decode()
    return f'<svg viewBox="0 0 {width} {height}"><image href="data:image/png;base64,{png}"/>{"".join(shapes)}</svg>'


def field_heat(field: np.ndarray) -> np.ndarray:
    """Contributions (H, W), none negative, as heat: means of blocks on a logarithmic scale.

    Returns:
        0 (`DARKEST` of the largest, or less) to 1 (the largest), (H / BLOCK, W / BLOCK).
    """
    height, width = (max(1, round(length / BLOCK)) for length in field.shape)
    field = cv2.resize(field, (width, height), interpolation=cv2.INTER_AREA)
    relative = np.maximum(field / (field.max() or 1), DARKEST)
    return 1 - np.log(relative) / np.log(DARKEST)


def mark(picture: np.ndarray, box: tuple[float, float, float, float], size: tuple[int, int]) -> np.ndarray:
    """Outline a box (left, top, right, bottom) of an image of a size (height, width) in a picture of it."""
    factors = picture.shape[1] / size[1], picture.shape[0] / size[0]
    left, top, right, bottom = (round(edge * factor) for edge, factor in zip(box, factors * 2))
    picture = picture.copy()
    for color, thickness in (((0, 0, 0), 5), (MARK, 2)):
        cv2.rectangle(picture, (left, top), (right, bottom), color, thickness)
    return picture


def mark_pixel(picture: np.ndarray, pixel: tuple[int, int], size: tuple[int, int]) -> np.ndarray:
    """Cross out a pixel (row, column) of an image of a size (height, width) in a picture of it."""
    row, column = (int((p + 0.5) * new / old) for p, new, old in zip(pixel, picture.shape, size))
    picture = picture.copy()
    for color, thickness in (((0, 0, 0), 5), (MARK, 2)):
        cv2.drawMarker(picture, (column, row), color, cv2.MARKER_CROSS, 24, thickness)
    return picture


def legend_of(result: Result, predictor: Predictor) -> str:
    """HTML of the classes that occur, the most frequent first, with their share of the pixels or their objects."""
    is_panoptic, number = isinstance(result, Panoptic), len(predictor.classes)
    labels = np.unique(result.segments) % INSTANCE_OFFSET if is_panoptic else result.labels.ravel()
    counts = np.bincount(labels, minlength=number)[:number]
    is_share = isinstance(result, Segmentation)
    texts = [f'{100 * count / labels.size:.1f} %' if is_share else str(count) for count in counts]
    entries = [
        f'<span class="entry"><span class="swatch" style="background: rgb{tuple(predictor.palette[index])}"></span>'
        f'{html.escape(predictor.classes[index])} {texts[index]}</span>'
        for index in np.argsort(-counts, kind='stable')
        if counts[index]
    ]
    return f'<div class="legend">{"".join(entries) or "nothing found"}</div>'


def color_bar(smallest: str, largest: str) -> str:
    """HTML of the colours of `draw_heat` with what their ends stand for."""
    colors = ', '.join('rgb({:.0f}, {:.0f}, {:.0f})'.format(*(255 * np.array(COLORS(x / 8)[:3]))) for x in range(9))
    bar = f'<span class="bar" style="background: linear-gradient(to right, {colors})"></span>'
    return f'<span class="scale">{html.escape(smallest)} {bar} {html.escape(largest)}</span>'
