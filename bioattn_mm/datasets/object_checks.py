"""What is wrong with objects in COCO's format and with the sizes of their images; inspection and training ask this.

What two thirds of the entries do alike is no slip of the hand: `likeness` says what they look like.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from .coco_file import Annotation, CocoFile, ImageEntry, mask_problem, polygons_of
from .parallel import spread

# Pixels by which a box may reach over the border of its image, and a polygon over that of its box: programs round.
TOLERANCE = 1.0
MASK_TOLERANCE = 2.0
# A likeness is named if at least this part of the entries has it, as a rule of all and not a slip.
MOSTLY = 2 / 3
# Without polygons or areas, corners are recognised if so many boxes fit as these, and so many do not fit as they are.
ALL, SOME = 0.95, 0.2
# Fewer objects say nothing about all, and more need not be looked at.
LEAST, MOST = 4, 20_000

MASK_OUTSIDE = 'mask outside its box'
TWICE = 'annotation twice', 'the same image, class, box and mask as one before'  # as `object_problem` says it
MOST_ALIKE = 'most entries alike'
OTHER_SIZE = 'image of another size'


def check_box(box: Sequence[float], width: int, height: int) -> tuple[str, str] | None:
    """What is wrong with a box of COCO's format, x, y, width, height in pixels, in an image: kind and detail.

    Boxes of less than a pixel, which mmdet leaves out, count as boxes without area.
    """
    x, y, box_width, box_height = box
    text = _text(box)
    if box_width < 1 or box_height < 1:
        return 'box without area', text
    over = max(-x, -y, x + box_width - width, y + box_height - height)
    if over > TOLERANCE:
        return 'box outside the image', f'{text} reaches {over:.4g} pixels over the border of {width} x {height}'
    return None


def object_problem(item: Annotation, image: ImageEntry, with_mask: bool) -> tuple[str, str] | None:
    """What is wrong with an object: kind and detail.

    Args:
        item: The object.
        image: Its image.
        with_mask: Whether the training loads masks, which are then checked.
    """
    problem = check_box(item.bbox, image.width, image.height)
    if problem is None and (item.area is None or item.area <= 0):
        problem = 'annotation without area', f'area {item.area!r}'
    if problem is None and with_mask:
        problem = mask_problem(item, image)
    if problem is None and not item.iscrowd:
        extent = extent_of(item)
        if extent is not None:
            x, y, width, height = item.bbox
            over = max(x - extent[0], y - extent[1], extent[2] - x - width, extent[3] - y - height)
            if over > MASK_TOLERANCE:
                problem = MASK_OUTSIDE, f'a polygon reaches {over:.4g} pixels over the border of {_text(item.bbox)}'
    return problem


def repeated(annotations: Iterable[Annotation]) -> Iterator[bool]:
    """For each annotation whether one before it has the same image, class, box and mask."""
    seen = set()
    for item in annotations:
        mask = bytes(item.segmentation) if item.has_mask else b''
        key = hash((item.image_id, item.category_id, item.bbox, item.iscrowd, mask))
        yield key in seen
        seen.add(key)


def extent_of(item: Annotation) -> tuple[float, float, float, float] | None:
    """Least x and y and largest x and y of the polygons of an object in pixels; None without polygons."""
    polygons = polygons_of(item)
    if not polygons:
        return None
    xs, ys = ([value for polygon in polygons for value in polygon[first::2]] for first in (0, 1))
    return min(xs), min(ys), max(xs), max(ys)


def size_problem(stated: tuple[int, int], actual: tuple[int, int]) -> tuple[str, str] | None:
    """What is wrong with the size of an image, width and height in pixels, that its annotations state."""
    if stated == actual:
        return None
    return OTHER_SIZE, f'{actual[0]} x {actual[1]}, the annotations say {stated[0]} x {stated[1]}'


def size_likeness(pairs: Sequence[tuple[tuple[int, int], tuple[int, int]]]) -> str | None:
    """What the sizes that annotations state look like, of pairs of them and of those of the files."""
    swapped = sum(stated != actual and stated == actual[::-1] for stated, actual in pairs)
    if not swapped or swapped < MOSTLY * len(pairs):
        return None
    return (
        f'the sizes look like width and height exchanged ({swapped} of {len(pairs)} images), as of files before '
        'their EXIF data turn them: annotate the images as they are shown, or remove the orientation from the files'
    )


def likeness(content: CocoFile) -> list[str]:
    """What most boxes or polygons of a file look like if most are wrong as they are, and what to do; a line each."""
    images = {entry.id: entry for entry in content.images}
    items = [item for item in content.annotations if item.image_id in images and not item.iscrowd]
    items = [items[index] for index in spread(len(items), MOST)]
    if len(items) < LEAST:
        return []
    sizes = np.array([(images[item.image_id].width, images[item.image_id].height) for item in items], float)
    boxes = np.array([item.bbox for item in items], float)
    areas = np.array([np.nan if item.area is None else item.area for item in items], float)
    extents = np.array([extent_of(item) or (np.nan,) * 4 for item in items], float)
    found = _boxes_likeness(boxes, sizes, areas, extents) or _masks_likeness(boxes, sizes, extents)
    return [found] if found else []


def _boxes_likeness(boxes: np.ndarray, sizes: np.ndarray, areas: np.ndarray, extents: np.ndarray) -> str | None:
    """See `likeness`. Boxes and extents are (N, 4), sizes (N, 2), areas (N,); NaN where there is none."""
    inside = _fits(boxes, sizes)
    with_mask = ~np.isnan(extents[:, 0])
    matches = _matches(boxes, extents)
    a, b, c, d = boxes.T
    u, v = a + c / 2, b + d / 2  # the first two numbers of a line in YOLO's format
    width, height = sizes.T
    readings = {
        'corners x1, y1, x2, y2': (a, b, c - a, d - b),
        'corners x1, y1, x2, y2 in place of centre and size': (u, v, c - u, d - v),
        'shares of the width and height of the image': (a * width, b * height, c * width, d * height),
        'width and height in place of the second corner': (a, b, a + c, b + d),
        'centres x, y with width and height': (a - c / 2, b - d / 2, c, d),
        'y, x, height, width': (b, a, d, c),
    }
    for name, reading in readings.items():
        read = np.stack(reading, axis=1)
        fits = _fits(read, sizes) & (_matches(read, extents) | ~with_mask)
        # Objects whose image, polygons or area fit the reading and not the box as it is.
        better = ~inside | (with_mask & ~matches & (name != 'y, x, height, width'))
        if name.startswith('corners'):
            better |= np.isclose(areas, read[:, 2] * read[:, 3], rtol=0.01) & ~np.isclose(
                areas, boxes[:, 2] * boxes[:, 3], rtol=0.01
            )
            if fits.mean() >= ALL and (~inside).mean() >= SOME:
                better[:] = True
        number = int((fits & better).sum())
        if number >= MOSTLY * len(boxes):
            return (
                f'boxes look like {name} ({number} of {len(boxes)} objects): write them in the format that the file '
                "is in, such as x, y, width, height in pixels in COCO's"
            )
    return None


def _masks_likeness(boxes: np.ndarray, sizes: np.ndarray, extents: np.ndarray) -> str | None:
    """See `likeness`."""
    with_mask = ~np.isnan(extents[:, 0])
    wrong = with_mask & ~_matches(boxes, extents)
    if not with_mask.any() or wrong.sum() < MOSTLY * with_mask.sum():
        return None
    scale = np.nanmedian((boxes[:, :2] + boxes[:, 2:]) / np.maximum(extents[:, 2:], 1e-9))
    readings = {
        'polygons look as if x and y were exchanged': extents[:, (1, 0, 3, 2)],
        'polygons look like shares of the width and height of the image': extents * np.tile(sizes, 2),
        f'polygons look as if they were of an image {1 / scale:.3g} times as large': extents * scale,
    }
    for name, reading in readings.items():
        number = int((wrong & _matches(boxes, reading)).sum())
        if number >= MOSTLY * with_mask.sum():
            return f'{name} ({number} of {int(with_mask.sum())} objects): write them as their boxes are, in pixels'
    return None


def _fits(boxes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Whether boxes x, y, width, height have an area and are in their images."""
    low, high = boxes[:, :2], boxes[:, :2] + boxes[:, 2:]
    return (boxes[:, 2:] >= 1).all(1) & (low >= -TOLERANCE).all(1) & (high <= sizes + TOLERANCE).all(1)


def _matches(boxes: np.ndarray, extents: np.ndarray) -> np.ndarray:
    """Whether boxes x, y, width, height are those of their polygons."""
    corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    return (np.abs(corners - extents) <= MASK_TOLERANCE).all(1)


def _text(box: Sequence[float]) -> str:
    return f'bbox [{", ".join(f"{value:g}" for value in box)}]'


def is_local(folder: Path) -> bool:
    """Whether images are files in a folder, not in shards, so that their headers can be read."""
    return folder.is_dir() and next(folder.glob('*.tar'), None) is None
