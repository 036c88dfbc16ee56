"""The formats in which predictions are written: COCO's, YOLO's, and images of indices."""

import json
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from PIL import Image
from pycocotools import mask as coco_mask

from ..errors import InputError
from .files import atomic_path, atomic_write
from .predictions import Detections

FORMATS = ('coco', 'yolo')  # what detectors write: --format
MAX_PALETTE = 256


def coco_annotations(result: Detections) -> list[dict]:
    """The detections of an image in COCO's format, by falling score, without ids."""
    annotations = []
    for index in result.best_first():
        left, top, right, bottom = result.boxes[index].tolist()
        box = [left, top, right - left, bottom - top]
        label, score = int(result.labels[index]), float(result.scores[index])
        annotations.append(dict(category_id=label + 1, bbox=box, score=score, area=box[2] * box[3], iscrowd=0))
        if result.masks is not None:
            mask = result.masks[index]
            encoded = coco_mask.encode(np.asfortranarray(mask, np.uint8))
            segmentation = dict(size=encoded['size'], counts=encoded['counts'].decode())
            annotations[-1].update(area=np.count_nonzero(mask), segmentation=segmentation)
    return annotations


def yolo_lines(result: Detections, height: int, width: int) -> str:
    """The detections of an image in YOLO's format, the best first.

    A line is the index of the class, then the centre, width and height of the box or, where there are masks, the
    corners of the `outline`, in shares of the image's width and height. An object without pixels has no line.
    """
    sides, lines = np.array([width, height]), []
    for index in result.best_first():
        if result.masks is None:
            first, last = (np.clip(corner / sides, 0, 1) for corner in result.boxes[index].reshape(2, 2))
            values = np.concatenate([(first + last) / 2, last - first])
        else:
            values = (outline(result.masks[index]) / sides).ravel()
        if len(values):
            lines.append(f'{result.labels[index]} {" ".join(f"{value:.9g}" for value in values)}\n')
    return ''.join(lines)


def yolo_names(classes: Sequence[str]) -> str:
    """`data.yaml` of YOLO's format, with the names of the classes: JSON's strings are YAML's."""
    names = (f'  {index}: {json.dumps(name, ensure_ascii=False)}\n' for index, name in enumerate(classes))
    return f'train: images\nval: images\nnames:\n{"".join(names)}'


def outline(mask: np.ndarray) -> np.ndarray:
    """The outline of a mask as one polygon, along the borders of its pixels.

    From part to part, and from a part to its holes, it goes on a straight line and later back on the same one, which
    encloses nothing. Drawn with the even-odd rule, as by pycocotools, it is the mask again, pixel for pixel.

    Args:
        mask: bool (H, W).

    Returns:
        x and y of its corners in pixels, int (N, 2); empty if no pixel is set.
    """
    if not mask.any():
        return np.empty((0, 2), int)
    # OpenCV's contours go through the centres of pixels. In an image of twice the size, the centre of the first of a
    # row's pixels stands for its left border, and that of the last for its right one.
    twice = mask.repeat(2, axis=0).repeat(2, axis=1).astype(np.uint8)
    contours, _ = cv2.findContours(twice, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    rings = [(contour[:, 0] + 1) // 2 for contour in contours]
    rings = [np.concatenate([ring, ring[:1]]) for ring in rings]
    back = [ring[:1] for ring in rings[-2::-1]]
    return np.concatenate([*rings, *back])


def index_image(labels: np.ndarray, palette: list[tuple[int, int, int]]) -> Image.Image:
    """An image whose pixels are indices of classes, shown in their colours; in 16 bits and grey if they are many.

    Args:
        labels: (H, W) of ints.
        palette: R, G and B of each class.
    """
    if len(palette) > MAX_PALETTE or labels.max() >= MAX_PALETTE:
        return Image.fromarray(labels.astype(np.uint16))
    image = Image.fromarray(labels.astype(np.uint8))
    # All 256 entries: Pillow packs pixels into as few bits as a shorter palette needs.
    image.putpalette([value for color in palette for value in color] + [0] * 3 * (MAX_PALETTE - len(palette)))
    return image


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in a folder that is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(text.encode())


def write_png(path: Path, image: Image.Image) -> None:
    """Write a PNG file atomically, in a folder that is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as partial:
        image.save(partial, format='PNG')


def check_formats(formats: Sequence[str] | None, task: str) -> None:
    """Raise an `InputError` if `--format` is given for what is no detector."""
    if formats and task != 'detection':
        raise InputError(f'--format {formats[0]} is for detectors, and this is a model of {task}: leave it out')
