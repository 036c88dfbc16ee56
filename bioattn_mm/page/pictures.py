"""Pictures and legends of the page: NumPy arrays and HTML. All images are RGB, uint8 (H, W, 3)."""

import html

import cv2
import numpy as np
import torch
from mmdet.structures import INSTANCE_OFFSET
from mmengine.structures import BaseDataElement, PixelData

from ..analysis.heat import COLORS
from ..inference import Predictor

# Longer side of the pictures, in pixels. Small images are enlarged: browsers would show them small.
LONGER_SIDE = 800
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
    picture: np.ndarray, sample: BaseDataElement, predictor: Predictor, opacity: float, score_thr: float
) -> np.ndarray:
    """A prediction as a layer over a picture.

    Args:
        picture: The image, of any size.
        sample: The prediction, in pixels of the file.
        predictor: What made it.
        opacity: Share of the layer, 0 for the image alone to 1.
        score_thr: Objects whose score is not above this are left out.
    """
    if predictor.task == 'segmentation':
        labels = _label_map(sample).astype(np.int32)
        labels = cv2.resize(labels, picture.shape[1::-1], interpolation=cv2.INTER_NEAREST)
        layer, palette = picture.copy(), np.array(predictor.palette, np.uint8)
        inside = labels < len(palette)  # models of one class mark all other pixels with 1
        layer[inside] = palette[labels[inside]]
    elif predictor.task == 'panoptic':
        segments = _segments(sample)
        segments = cv2.resize(segments, picture.shape[1::-1], interpolation=cv2.INTER_NEAREST)
        resized = type(sample)(pred_panoptic_seg=PixelData(sem_seg=torch.from_numpy(segments)[None]))
        layer = predictor.draw(picture[..., ::-1], resized, opacity=1.0)[..., ::-1]
    else:
        layer = _draw_objects(picture, sample, predictor, score_thr)
    return cv2.addWeighted(np.ascontiguousarray(layer), opacity, picture, 1 - opacity, 0)


def _label_map(sample: BaseDataElement) -> np.ndarray:
    return sample.pred_sem_seg.data[0].numpy()


def _segments(sample: BaseDataElement) -> np.ndarray:
    return sample.pred_panoptic_seg.sem_seg[0].numpy()


def _draw_objects(picture: np.ndarray, sample: BaseDataElement, predictor: Predictor, score_thr: float) -> np.ndarray:
    """The picture with masks in the colours of the legend, and with boxes and names as mmdet draws them."""
    height, width = picture.shape[:2]
    objects = _objects_above(sample, score_thr)
    layer = picture.copy()
    if 'masks' in objects:
        # mmdet itself varies the colours of masks, at random.
        for mask, label in zip(objects.masks.numpy().astype(np.uint8), objects.labels):
            inside = cv2.resize(mask, (width, height)).astype(bool)
            layer[inside] = (layer[inside] + np.array(predictor.palette[label], float)) / 2
        del objects.masks
    factors = width / sample.ori_shape[1], height / sample.ori_shape[0]
    objects.bboxes = objects.bboxes * objects.bboxes.new_tensor(factors * 2)
    drawn = predictor.draw(layer[..., ::-1], type(sample)(pred_instances=objects), score_thr=score_thr)
    return drawn[..., ::-1]


def _objects_above(sample: BaseDataElement, score_thr: float) -> BaseDataElement:
    """The detected objects of higher scores, in a container of their own."""
    objects = sample.pred_instances
    return objects[objects.scores > score_thr]


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
    """Outline a box in a picture.

    Args:
        picture: The picture.
        box: Left, top, right and bottom edge.
        size: (height, width) of the image in the units of the box, which the picture shows as a whole.
    """
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


def legend_of(sample: BaseDataElement, predictor: Predictor, score_thr: float) -> str:
    """HTML of the classes that occur, the most frequent first, with their share of the pixels or their objects."""
    number = len(predictor.classes)
    if predictor.task == 'segmentation':
        counts = np.bincount(_label_map(sample).ravel(), minlength=number)
        texts = [f'{100 * count / counts.sum():.1f} %' for count in counts]
        counts = counts[:number]
    elif predictor.task == 'panoptic':
        labels = np.unique(_segments(sample)) % INSTANCE_OFFSET
        counts = np.bincount(labels[labels < number], minlength=number)
        texts = [f'{count}' for count in counts]
    else:
        counts = np.bincount(_objects_above(sample, score_thr).labels.numpy(), minlength=number)
        texts = [f'{count}' for count in counts]
    entries = [
        '<span class="entry"><span class="swatch" style="background: rgb({}, {}, {})"></span>'.format(
            *predictor.palette[index]
        )
        + f'{html.escape(predictor.classes[index])} {texts[index]}</span>'
        for index in np.argsort(-counts, kind='stable')
        if counts[index]
    ]
    return f'<div class="legend">{"".join(entries) or "nothing found"}</div>'


def color_bar(smallest: str, largest: str) -> str:
    """HTML of the colours of `draw_heat` with what their ends stand for."""
    colors = ', '.join('rgb({:.0f}, {:.0f}, {:.0f})'.format(*(255 * np.array(COLORS(x / 8)[:3]))) for x in range(9))
    bar = f'<span class="bar" style="background: linear-gradient(to right, {colors})"></span>'
    return f'<span class="scale">{html.escape(smallest)} {bar} {html.escape(largest)}</span>'
