"""What a dataset holds, and what is wrong with it: annotations in COCO's format, and folders of label maps.

The files of annotations are checked as they are, as mmdet leaves out in silence what it cannot use. Of images only
the headers are read, unless asked to decode them.
"""

import json
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from mmdet.datasets import CocoDataset, CocoPanopticDataset
from mmengine.dataset import BaseDataset
from mmseg.datasets import BaseSegDataset
from PIL import Image

from ..errors import InputError
from .transforms import check_segmentation, labels_of_colours

# Pixels by which a box may reach over the border: annotation tools round.
TOLERANCE = 1.0
# Orientations in EXIF that swap width and height when an image is loaded.
ORIENTATION, SWAPPING = 0x0112, (5, 6, 7, 8)
NUM_THREADS = 8  # which read files
Track = Callable[[Iterable, str, int], Iterator]


@dataclass(frozen=True)
class Problem:
    """Something that is wrong.

    Attributes:
        kind: A few words, the same for all problems of this kind.
        file: The image, label map or annotation file.
        detail: What was found, such as the id of an annotation.
    """

    kind: str
    file: str
    detail: str = ''


@dataclass
class Inspection:
    """What was found in a dataset, over all of its parts.

    Attributes:
        classes: Names of the classes.
        problems: What is wrong.
        files: The images.
        sizes: Width and height of each image in pixels, (N, 2); as the annotations say, or the file.
        numbers: For each image the number of its objects, or of the classes in its label map.
        amounts: For each class the number of its objects, or of its pixels.
        images_of_class: For each class the number of images that show it.
        box_sizes: Width and height of each object's box in pixels, (M, 2); empty for label maps.
        num_ignored: Number of crowds, or of pixels that do not count.
        num_empty: Number of images without objects or labels, which is nothing wrong.
        notes: What is to be known and not wrong, one line each.
    """

    classes: Sequence[str]
    problems: list[Problem] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    box_sizes: list[tuple[float, float]] = field(default_factory=list)
    num_ignored: int = 0
    num_empty: int = 0
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.amounts = np.zeros(len(self.classes), np.int64)
        self.images_of_class = np.zeros(len(self.classes), np.int64)

    def add_problem(self, kind: str, file: object, detail: str = '') -> None:
        self.problems.append(Problem(kind, str(file), detail))

    def add_twice(self, kind: str, file: object, values: Iterable) -> None:
        """Add a problem for each value that stands more than once."""
        for value, count in Counter(values).items():
            if count > 1:
                self.add_problem(kind, file, f'{value} stands {count} times')


def inspect_dataset(
    found: Inspection, dataset: BaseDataset, with_mask: bool, max_images: int | None, decode: bool, track: Track
) -> None:
    """Inspect a dataset.

    Args:
        found: What was found is added to it.
        dataset: A dataset built with `lazy_init`, as loading can fail where annotations are wrong.
        with_mask: Whether the training loads masks of objects, which are then checked.
        max_images: Number of image files and label maps to read at most, spread over all; None for all.
        decode: Whether to decode images; otherwise their headers are read.
        track: Shows progress: called with an iterable, what is done, and the number of steps.

    Raises:
        InputError: It is neither mmdet's `CocoDataset` nor a dataset of mmseg, or its list of images cannot be read.
    """
    if isinstance(dataset, CocoPanopticDataset):
        raise InputError(
            'panoptic annotations cannot be inspected: inspect the instances or the label maps of the same images '
            'with the config of either, such as configs/transnext/mask2former_tiny_coco.py'
        )
    if isinstance(dataset, CocoDataset):
        _inspect_coco(found, dataset, with_mask, max_images, decode, track)
    elif isinstance(dataset, BaseSegDataset):
        dataset.full_init()
        _inspect_label_maps(found, dataset, max_images, decode, track)
    else:
        raise InputError(
            f"{type(dataset).__name__} cannot be inspected: expected mmdet's CocoDataset or a dataset of mmseg"
        )


# ----------------------------------------------------------------------------
# COCO's format


def _inspect_coco(
    found: Inspection, dataset: CocoDataset, with_mask: bool, max_images: int | None, decode: bool, track: Track
) -> None:
    path = dataset.ann_file
    images, annotations, categories = read_coco(path)
    label_of = _check_categories(found, path, categories)

    places: dict[object, int] = {}  # of image ids in `files`
    first = len(found.files)
    folder = Path(dataset.data_prefix.get('img', ''))
    for entry in images:
        width, height, name = entry.get('width'), entry.get('height'), entry.get('file_name')
        if 'id' not in entry or not isinstance(name, str) or not (_is_size(width) and _is_size(height)):
            found.add_problem('image entry incomplete', path, f'{json.dumps(entry)[:100]}')
            continue
        places.setdefault(entry['id'], len(found.files) - first)
        found.files.append(str(folder / name))
        found.sizes.append((width, height))
    found.add_twice('image id twice', path, (entry.get('id') for entry in images))
    found.add_twice('image file twice', path, found.files[first:])
    found.add_twice('annotation id twice', path, (item['id'] for item in annotations if 'id' in item))

    sizes = found.sizes[first:]
    numbers = np.zeros(len(sizes), np.int64)
    pairs = set()  # of image and class
    dropped: Counter = Counter()  # annotations of categories that are no classes
    for item in track(annotations, 'checking annotations', len(annotations)):
        place = places.get(item.get('image_id'))
        if place is None:
            found.add_problem('image id unknown', path, f'{_name(item)}: image_id {item.get("image_id")!r}')
            continue
        file, size = found.files[first + place], sizes[place]
        label = label_of.get(item.get('category_id'))
        if label is None:
            category = item.get('category_id')
            found.add_problem('category id out of range', file, f'{_name(item)}: category_id {category!r}')
            continue
        if label < 0:
            dropped[item['category_id']] += 1
            continue
        problem = check_box(item.get('bbox'), *size)
        if problem is None and not _is_number(item.get('area')):
            problem = 'annotation without area', f'area {item.get("area")!r}'
        if problem is None and with_mask:
            problem = _check_mask(item.get('segmentation'), size)
        if problem:
            found.add_problem(problem[0], file, f'{_name(item)}: {problem[1]}')
        elif item.get('iscrowd') or item.get('ignore'):
            found.num_ignored += 1
        else:
            numbers[place] += 1
            found.amounts[label] += 1
            found.box_sizes.append(tuple(item['bbox'][2:]))
            pairs.add((place, label))
    for _, label in pairs:
        found.images_of_class[label] += 1
    found.numbers += numbers.tolist()
    found.num_empty += int((numbers == 0).sum())
    if dropped:
        names = {entry['id']: entry['name'] for entry in categories}
        listed = ', '.join(f'{names[key]!r} ({count})' for key, count in dropped.most_common(5))
        found.notes.append(f'{path}: annotations of categories that are no classes are left out: {listed}')
    _check_files(found, list(zip(found.files[first:], sizes)), max_images, decode, track)


def read_coco(path: str) -> tuple[list[dict], list[dict], list[dict]]:
    """The images, annotations and categories of a file in COCO's format.

    Raises:
        InputError: It cannot be read, or is something else.
    """
    try:
        document = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f'{path} is no JSON file: {error}') from error
    parts = [
        document.get(key) if isinstance(document, dict) else None for key in ('images', 'annotations', 'categories')
    ]
    if not all(isinstance(part, list) and all(isinstance(entry, dict) for entry in part) for part in parts):
        raise InputError(f"{path} is not in COCO's format: expected lists of images, annotations and categories")
    if not all({'id', 'name'} <= set(entry) for entry in parts[2]):
        raise InputError(f"{path} is not in COCO's format: a category has no id or no name")
    return tuple(parts)


def _check_categories(found: Inspection, path: str, categories: list[dict]) -> dict[object, int]:
    """Class of each category id; -1 for the categories that are none."""
    found.add_twice('category id twice', path, (entry['id'] for entry in categories))
    found.add_twice('category name twice', path, (entry['name'] for entry in categories))
    names = [entry['name'] for entry in categories]
    for name in found.classes:
        if name not in names:
            found.add_problem('class without category', path, f'{name!r}: mmdet shifts the labels of those after it')
    used = [name for name in names if name in found.classes]
    if used != [name for name in found.classes if name in names]:
        found.add_problem(
            'categories in another order', path, f'{", ".join(used[:5])}: mmdet numbers them so, whatever the classes'
        )
    labels = {name: label for label, name in enumerate(found.classes)}
    label_of: dict[object, int] = {}
    for entry in categories:
        label_of.setdefault(entry['id'], labels.get(entry['name'], -1))
    return label_of


def _is_size(value: object) -> bool:
    return isinstance(value, int) and value > 0


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _name(annotation: dict) -> str:
    return f'annotation {annotation.get("id")}'


def check_box(box: object, width: int, height: int) -> tuple[str, str] | None:
    """What is wrong with a box of COCO's format, x, y, width, height in pixels, in an image: kind and detail.

    Boxes of less than a pixel, which mmdet leaves out, count as boxes without area.
    """
    if not isinstance(box, (list, tuple)) or len(box) != 4 or not all(map(_is_number, box)):
        return 'box malformed', f'bbox {str(box)[:60]}, expected [x, y, width, height]'
    x, y, box_width, box_height = box
    if box_width < 1 or box_height < 1:
        return 'box without area', f'bbox {box}'
    over = max(-x, -y, x + box_width - width, y + box_height - height)
    if over > TOLERANCE:
        return 'box outside the image', f'bbox {box} reaches {over:.4g} pixels over the border of {width} x {height}'
    return None


def _check_mask(segmentation: object, size: tuple[int, int]) -> tuple[str, str] | None:
    width, height = size
    if isinstance(segmentation, dict) and segmentation.get('size') not in (None, [height, width]):
        return 'mask of another size', f'run lengths for {segmentation["size"]}, the image is {[height, width]}'
    try:
        check_segmentation(segmentation, (height, width))
    except ValueError as error:
        return 'mask malformed', str(error)
    return None


# ----------------------------------------------------------------------------
# Label maps


def _inspect_label_maps(
    found: Inspection, dataset: BaseSegDataset, max_images: int | None, decode: bool, track: Track
) -> None:
    infos = [dataset.get_data_info(index) for index in _spread(len(dataset), max_images)]
    if len(infos) < len(dataset):
        found.notes.append(f'{len(infos)} of {len(dataset)} images and label maps were read')

    def read(info: dict) -> tuple[dict, object, object]:
        return info, _attempt(read_size, info['img_path'], decode), _attempt(_read_labels, info['seg_map_path'])

    for info, size, labels in track(_in_threads(read, infos), 'reading images and label maps', len(infos)):
        image, path = info['img_path'], info['seg_map_path']
        _add_unreadable(found, 'image', image, size)
        _add_unreadable(found, 'label map', path, labels)
        if not isinstance(labels, np.ndarray):
            continue
        if isinstance(size, tuple) and labels.shape[1::-1] != size:
            shape = ' x '.join(map(str, labels.shape[1::-1]))
            found.add_problem('label map of another size', path, f'{shape}, the image is {size[0]} x {size[1]}')
        counts = _count_labels(found, info, labels, dataset.ignore_index)
        if counts is not None and isinstance(size, tuple):
            found.files.append(image)
            found.sizes.append(size)
            found.numbers.append(int((counts > 0).sum()))
            found.amounts += counts
            found.images_of_class += counts > 0
            found.num_ignored += labels.shape[0] * labels.shape[1] - int(counts.sum())
            found.num_empty += not counts.any()


def _read_labels(path: str) -> np.ndarray:
    """The values of a label map as they are in the file: (H, W), or (H, W, 3) if it is a colour image."""
    with Image.open(path) as image:
        return np.asarray(image)


def _count_labels(found: Inspection, info: dict, labels: np.ndarray, ignore_index: int) -> np.ndarray | None:
    """Count the pixels of each class in a label map; None if it holds something else than labels."""
    path, num_classes = info['seg_map_path'], len(found.classes)
    if info.get('label_colours'):
        try:
            labels = labels_of_colours(labels[..., ::-1], info['label_colours'], num_classes)
        except ValueError as error:
            found.add_problem('label map of other colours', path, str(error))
            return None
    if labels.ndim != 2 or labels.dtype.kind not in 'bui':
        kind = f'shape {labels.shape}, {labels.dtype}'
        found.add_problem('label map of another kind', path, f'{kind}: expected one integer a pixel')
        return None
    if labels.dtype.itemsize <= 2 and labels.dtype.kind in 'bu':  # many times faster than `unique`
        numbers = np.bincount(labels.ravel())
        values = np.flatnonzero(numbers)
        numbers = numbers[values]
    else:
        values, numbers = np.unique(labels, return_counts=True)
    counts = np.zeros(num_classes, np.int64)
    first = int(bool(info.get('reduce_zero_label')))
    for value, number in zip(values.tolist(), numbers.tolist()):
        if value == ignore_index or value < first:
            continue
        label = value - first
        label = (info.get('label_map') or {}).get(label, label)
        if 0 <= label < num_classes:
            counts[label] += number
        elif label != ignore_index:
            found.add_problem(
                'label out of range',
                path,
                f'{number} pixels are {value}: expected {first} to {num_classes - 1 + first}, or {ignore_index}',
            )
    return counts


# ----------------------------------------------------------------------------
# Files


def read_size(path: str, decode: bool) -> tuple[int, int]:
    """Width and height of an image in pixels as it is loaded, turned as its EXIF says.

    Args:
        path: The file.
        decode: Whether to decode the image, which takes longer and finds damage beyond the header.

    Raises:
        Exception: It cannot be read.
    """
    with Image.open(path) as image:
        if decode:
            image.load()
        turned = image.getexif().get(ORIENTATION) in SWAPPING
        return image.size[::-1] if turned else image.size


def _check_files(
    found: Inspection, expected: list[tuple[str, tuple[int, int]]], max_images: int | None, decode: bool, track: Track
) -> None:
    """Check that images can be read and have the sizes that the annotations say."""
    chosen = [expected[index] for index in _spread(len(expected), max_images)]
    if len(chosen) < len(expected):
        found.notes.append(f'{len(chosen)} of {len(expected)} image files were read')

    def read(entry: tuple[str, tuple[int, int]]) -> tuple[str, tuple[int, int], object]:
        return *entry, _attempt(read_size, entry[0], decode)

    for file, size, actual in track(_in_threads(read, chosen), 'reading images', len(chosen)):
        _add_unreadable(found, 'image', file, actual)
        if isinstance(actual, tuple) and actual != size:
            sizes = f'{actual[0]} x {actual[1]}, the annotations say {size[0]} x {size[1]}'
            found.add_problem('image of another size', file, sizes)


def _spread(number: int, maximum: int | None) -> list[int]:
    """At most so many of all indices, evenly spread."""
    if maximum is None or number <= maximum:
        return list(range(number))
    return np.linspace(0, number - 1, maximum).astype(int).tolist()


def _in_threads(function: Callable, items: Sequence) -> Iterator:
    with ThreadPoolExecutor(NUM_THREADS) as pool, warnings.catch_warnings():
        warnings.simplefilter('ignore')  # Pillow's, of odd metadata and of large images
        # In portions, as all results at once would be too large.
        for start in range(0, len(items), 16 * NUM_THREADS):
            yield from pool.map(function, items[start : start + 16 * NUM_THREADS])


def _attempt(function: Callable, *args: object) -> object:
    """The result of a function, or its error: damaged images raise errors of many kinds."""
    try:
        return function(*args)
    except Exception as error:
        return error


def _add_unreadable(found: Inspection, what: str, path: str, result: object) -> None:
    if isinstance(result, FileNotFoundError):
        found.add_problem(f'{what} missing', path)
    elif isinstance(result, Exception):
        reason = (str(result).strip() or type(result).__name__).splitlines()[0]
        found.add_problem(f'{what} unreadable', path, reason)
