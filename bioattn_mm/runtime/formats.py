"""The detections of a run in other formats than COCO's: YOLO's and Pascal VOC's, which own data may have."""

import json
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import cv2
import numpy as np
from PIL import Image

from ..errors import InputError, printable
from ..files import atomic_path, atomic_write
from .tasks import Detections
from .voc import BACKGROUND, BORDER, voc_palette

# What detectors write: --format.
FORMATS = ('coco', 'yolo', 'voc')
LABELS = 'labels'  # what segmentors write


def check_formats(formats: Sequence[str], task: str, num_classes: int) -> None:
    """Raise an `InputError` if a model does not write a format.

    Args:
        formats: Those of `FORMATS`, or `LABELS`.
        task: The model's.
        num_classes: The number of its classes.
    """
    known = dict(detection=FORMATS, panoptic=('coco',), segmentation=(LABELS,)).get(task, ())
    wrong = [name for name in formats if name not in known]
    if wrong:
        expected = ', '.join(known) or 'none: it writes its scores as JSON'
        raise InputError(f'--format {wrong[0]} is not of a model of {task}: expected {expected}')
    if 'voc' in formats and num_classes >= BORDER:
        raise InputError(
            f"VOC's label maps hold {BORDER - 1} classes, the model has {num_classes}: take --format coco"
        )


class YoloFiles:
    """Detections in YOLO's format: `labels/NAME.txt`, and `data.yaml` with the names of the classes.

    A line is the index of the class, then the centre, width and height of the box, or where there are masks the
    corners of the outline (see `outline`), in shares of the image's width and height; the best detections first. An
    object whose mask has no pixel has no outline, and no line. With the images in `images` the folder is own data.

    Args:
        folder: The folder of the results.
        classes: The names of the classes.
        save_conf: Whether each line ends with the score.
    """

    def __init__(self, folder: Path, classes: Sequence[str], save_conf: bool = False) -> None:
        self.folder, self.classes, self.save_conf = folder, classes, save_conf

    def add(self, name: str, entry: dict, result: Detections) -> None:
        """Write the detections of an image, of the width and height in its entry of COCO's format."""
        sides = np.array([entry['width'], entry['height']])
        lines = []
        for index in result.best_first():
            if result.masks is None:
                first, last = (np.clip(corner / sides, 0, 1) for corner in result.boxes[index].reshape(2, 2))
                values = np.concatenate([(first + last) / 2, last - first])
            else:
                corners = outline(result.mask(index))
                if not len(corners):
                    continue
                values = (corners / sides).ravel()
            score = [result.scores[index]] if self.save_conf else []
            lines.append(' '.join([str(result.labels[index]), *(f'{value:.9g}' for value in (*values, *score))]))
        write_text(self.folder / f'labels/{name}.txt', ''.join(f'{line}\n' for line in lines))

    def finish(self) -> None:
        """Write the names of the classes."""
        # JSON's strings are YAML's.
        names = ''.join(
            f'  {index}: {json.dumps(name, ensure_ascii=False)}\n' for index, name in enumerate(self.classes)
        )
        write_text(self.folder / 'data.yaml', f'train: images\nval: images\nnames:\n{names}')


class VocFiles:
    """Detections in Pascal VOC's format: `Annotations/NAME.xml`, and where there are masks two label maps.

    `SegmentationClass/NAME.png` has the index of the class plus 1 in each pixel and `SegmentationObject/NAME.png` the
    number of the object in the XML file, both 0 where none is, in VOC's colours. Of objects that overlap, the pixels
    are those of the better one; of more than 254 objects the label maps have the best. `palette.txt` has the
    colours and names of the classes. With the images in `JPEGImages` the folder is own data.

    Args:
        folder: The folder of the results.
        classes: The names of the classes.
    """

    def __init__(self, folder: Path, classes: Sequence[str]) -> None:
        self.folder, self.classes = folder, classes

    def add(self, name: str, entry: dict, result: Detections) -> None:
        """Write the detections of an image, of the width and height in its entry of COCO's format."""
        root = ElementTree.Element('annotation')
        file = f'{Path(name).name}.png' if 'frame' in entry else Path(entry['file_name']).name
        size = dict(width=entry['width'], height=entry['height'], depth=3)
        has_masks = result.masks is not None
        _add_elements(root, folder='JPEGImages', filename=printable(file), size=size, segmented=int(has_masks))
        order = result.best_first()
        for index in order:
            left, top, right, bottom = result.boxes[index].tolist()
            # VOC counts pixels from 1, and the last one is in the box.
            box = dict(xmin=_short(left + 1), ymin=_short(top + 1), xmax=_short(right), ymax=_short(bottom))
            values = dict(
                name=self.classes[result.labels[index]],
                pose='Unspecified',
                truncated=0,
                difficult=0,
                confidence=_short(result.scores[index], 6),
                bndbox=box,
            )
            _add_elements(ElementTree.SubElement(root, 'object'), **values)
        ElementTree.indent(root)
        write_text(self.folder / f'Annotations/{name}.xml', ElementTree.tostring(root, encoding='unicode') + '\n')
        if not has_masks:
            return
        objects = np.zeros((entry['height'], entry['width']), np.uint8)
        labels = np.full_like(objects, BACKGROUND)
        for number, index in reversed([*enumerate(order[: BORDER - 1], 1)]):
            mask = result.mask(index)
            objects[mask], labels[mask] = number, result.labels[index] + 1
        for kind, pixels in (('SegmentationClass', labels), ('SegmentationObject', objects)):
            image = Image.fromarray(pixels)
            image.putpalette(voc_palette().ravel().tolist())
            write_png(self.folder / f'{kind}/{name}.png', image)

    def finish(self) -> None:
        """Write the names of the classes and the colours of their pixels."""
        lines = zip(voc_palette().tolist(), ('background', *self.classes))
        write_text(self.folder / 'palette.txt', ''.join(f'{r} {g} {b} {name}\n' for (r, g, b), name in lines))


def outline(mask: np.ndarray) -> np.ndarray:
    """The outline of a mask as one polygon, along the borders of its pixels.

    From part to part, and from a part to its holes, it goes on a straight line and later back on the same one, which
    encloses nothing. So drawn with the even-odd rule, as by pycocotools, it is the mask again, pixel for pixel.

    Args:
        mask: bool (H, W).

    Returns:
        np.ndarray: x and y of its corners in pixels, int (N, 2); empty if no pixel is set.
    """
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    if not len(rows):
        return np.empty((0, 2), int)
    part = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    # OpenCV's contours go through the centres of pixels. In an image of twice the size, the centre of the first of a
    # row's pixels stands for its left border, and that of the last for its right one.
    twice = part.repeat(2, axis=0).repeat(2, axis=1).astype(np.uint8)
    contours, _ = cv2.findContours(twice, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    rings = [(contour[:, 0] + 1) // 2 for contour in contours]
    rings = [np.concatenate([ring, ring[:1]]) for ring in rings]
    back = [ring[:1] for ring in rings[-2::-1]]
    return np.concatenate([*rings, *back]) + (columns[0], rows[0])


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


def _add_elements(parent: ElementTree.Element, **values: object) -> None:
    """Add elements of these names with the text, or the elements, that they hold."""
    for name, value in values.items():
        element = ElementTree.SubElement(parent, name)
        if isinstance(value, dict):
            _add_elements(element, **value)
        else:
            element.text = str(value)


def _short(value: float, digits: int = 2) -> str:
    return f'{value:.{digits}f}'.rstrip('0').rstrip('.')
