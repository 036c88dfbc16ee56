"""What a dataset holds, and what is wrong with it: annotations in COCO's format, label maps, classes of images.

The files of annotations are checked as they are, as mmdet leaves out in silence what it cannot use. Of images only
the headers are read, unless asked to decode them.
"""

import functools
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

from ..errors import InputError, first_line
from ..files import other_spelling
from ..runtime.channels import ImageKind
from .coco_file import file_problems, labels_of, read_coco_file
from .image_size import read_size
from .label_maps import count_labels, read_label_map
from .object_checks import MOST_ALIKE, TWICE, likeness, object_problem, repeated, size_likeness, size_problem
from .parallel import spread
from .problem import Problem

NUM_THREADS = 8  # which read files
Track = Callable[[Iterable, str, int], Iterator]
SizeOf = Callable[[str], tuple[int, int]]  # what `read_size` says of a file


@dataclass
class Inspection:
    """What was found in a dataset, over all of its parts.

    Attributes:
        classes: Names of the classes.
        problems: What is wrong.
        files: The images.
        sizes: Width and height of each image in pixels, (N, 2); as the annotations say, or the file.
        numbers: For each image the number of its objects, or of the classes in its label map or of the image.
        amounts: For each class the number of its objects, pixels or images.
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

    def nothing_labelled(self) -> bool:
        """Whether there are images, and no class has an object or a pixel in any of them."""
        return bool(self.files) and not self.amounts.any()


def inspect_dataset(
    found: Inspection,
    dataset: BaseDataset,
    with_mask: bool,
    max_images: int | None,
    decode: bool,
    track: Track,
    kind: ImageKind | None = None,
) -> None:
    """Inspect a dataset.

    Args:
        found: What was found is added to it.
        dataset: A dataset built with `lazy_init`, as loading can fail where annotations are wrong.
        with_mask: Whether the training loads masks of objects, which are then checked.
        max_images: Number of image files and label maps to read at most, spread over all; None for all.
        decode: Whether to decode images; otherwise their headers are read.
        track: Shows progress: called with an iterable, what is done, and the number of steps.
        kind: Channels and dtype that the images must have; None: they are loaded as RGB in 8 bits.

    Raises:
        InputError: It is neither mmdet's `CocoDataset` nor of mmseg or mmpretrain, or its list of images cannot be
            read.
    """
    if isinstance(dataset, CocoPanopticDataset):
        raise InputError(
            'panoptic annotations cannot be inspected: inspect the instances or the label maps of the same images '
            'with the config of either, such as configs/transnext/mask2former_tiny_coco.py'
        )
    size_of = functools.partial(read_size, decode=decode, kind=kind)
    if isinstance(dataset, CocoDataset):
        _inspect_coco(found, dataset, with_mask, max_images, size_of, track)
    elif isinstance(dataset, BaseSegDataset):
        dataset.full_init()
        _inspect_label_maps(found, dataset, max_images, size_of, track)
    elif hasattr(dataset, 'get_gt_labels'):  # of mmpretrain, which need not be installed
        dataset.full_init()
        _inspect_classes(found, dataset, max_images, size_of, track)
    else:
        raise InputError(
            f"{type(dataset).__name__} cannot be inspected: expected mmdet's CocoDataset, or a dataset of mmseg or "
            'mmpretrain'
        )


# ----------------------------------------------------------------------------
# COCO's format


def _inspect_coco(
    found: Inspection, dataset: CocoDataset, with_mask: bool, max_images: int | None, size_of: SizeOf, track: Track
) -> None:
    path = dataset.ann_file
    content = read_coco_file(path)
    path = content.path
    found.problems += content.faults
    found.problems += file_problems(content, found.classes)
    labels = labels_of(content, found.classes)

    first = len(found.files)
    folder = Path(dataset.data_prefix.get('img', ''))
    places: dict[object, int] = {}  # of image ids in `files`
    for place, entry in enumerate(content.images):
        places.setdefault(entry.id, place)
        found.files.append(str(folder / entry.file_name))
        found.sizes.append((entry.width, entry.height))

    numbers = np.zeros(len(content.images), np.int64)
    pairs = set()  # of image and class
    dropped: Counter = Counter()  # annotations of categories that are no classes
    checked = zip(content.annotations, repeated(content.annotations))
    for item, is_repeated in track(checked, 'checking annotations', len(content.annotations)):
        place = places.get(item.image_id)
        if place is None:
            found.add_problem('image id unknown', path, f'{item}: image_id {item.image_id!r}')
            continue
        image, file, label = content.images[place], found.files[first + place], labels.get(item.category_id)
        if label is None:
            found.add_problem('category id out of range', file, f'{item}: category_id {item.category_id!r}')
            continue
        if label < 0:
            dropped[item.category_id] += 1
            continue
        problem = object_problem(item, image, with_mask)
        if problem is None and is_repeated:
            problem = TWICE
        if problem:
            found.add_problem(problem[0], file, f'{item}: {problem[1]}')
        elif item.iscrowd or item.ignore:
            found.num_ignored += 1
        else:
            numbers[place] += 1
            found.amounts[label] += 1
            found.box_sizes.append(item.bbox[2:])
            pairs.add((place, label))
    for _, label in pairs:
        found.images_of_class[label] += 1
    found.numbers += numbers.tolist()
    found.num_empty += int((numbers == 0).sum())
    if dropped:
        names = {entry.id: entry.name for entry in content.categories}
        listed = ', '.join(f'{names[key]!r} ({count})' for key, count in dropped.most_common(5))
        found.notes.append(f'{path}: annotations of categories that are no classes are left out: {listed}')
    for line in likeness(content):
        found.add_problem(MOST_ALIKE, path, line)
    _check_files(found, list(zip(found.files[first:], found.sizes[first:])), max_images, size_of, track)


# ----------------------------------------------------------------------------
# Label maps


def _inspect_label_maps(
    found: Inspection, dataset: BaseSegDataset, max_images: int | None, size_of: SizeOf, track: Track
) -> None:
    infos = _infos(found, dataset, max_images, 'images and label maps')

    def read(info: dict) -> tuple[dict, object, object]:
        return info, _attempt(size_of, info['img_path']), _attempt(read_label_map, info['seg_map_path'])

    for info, size, labels in track(_in_threads(read, infos), 'reading images and label maps', len(infos)):
        image, path = info['img_path'], info['seg_map_path']
        _add_unreadable(found, 'image', image, size)
        _add_unreadable(found, 'label map', path, labels)
        if not isinstance(labels, np.ndarray):
            continue
        if isinstance(size, tuple) and labels.shape[1::-1] != size:
            shape = ' x '.join(map(str, labels.shape[1::-1]))
            found.add_problem('label map of another size', path, f'{shape}, the image is {size[0]} x {size[1]}')
        counts, wrong = count_labels(info, labels, len(found.classes), dataset.ignore_index)
        for kind, detail in wrong:
            found.add_problem(kind, path, detail)
        if counts is not None and isinstance(size, tuple):
            found.files.append(image)
            found.sizes.append(size)
            found.numbers.append(int((counts > 0).sum()))
            found.amounts += counts
            found.images_of_class += counts > 0
            found.num_ignored += labels.shape[0] * labels.shape[1] - int(counts.sum())
            found.num_empty += not counts.any()


# ----------------------------------------------------------------------------
# Classes of images


def _inspect_classes(
    found: Inspection, dataset: BaseDataset, max_images: int | None, size_of: SizeOf, track: Track
) -> None:
    infos = _infos(found, dataset, max_images, 'images')

    def read(info: dict) -> tuple[dict, object]:
        return info, _attempt(size_of, info['img_path'])

    for info, size in track(_in_threads(read, infos), 'reading images', len(infos)):
        _add_unreadable(found, 'image', info['img_path'], size)
        if isinstance(size, tuple):
            labels = np.unique(info['gt_label']).astype(int)  # one, or any number of multi-label data
            found.files.append(info['img_path'])
            found.sizes.append(size)
            found.numbers.append(len(labels))
            found.amounts[labels] += 1
            found.images_of_class[labels] += 1
            found.num_empty += len(labels) == 0


# ----------------------------------------------------------------------------
# Files


def _infos(found: Inspection, dataset: BaseDataset, max_images: int | None, what: str) -> list[dict]:
    """What a dataset says of its images, or of `max_images` of them, spread over all."""
    infos = [dataset.get_data_info(index) for index in spread(len(dataset), max_images)]
    if len(infos) < len(dataset):
        found.notes.append(f'{len(infos)} of {len(dataset)} {what} were read')
    return infos


def _check_files(
    found: Inspection,
    expected: list[tuple[str, tuple[int, int]]],
    max_images: int | None,
    size_of: SizeOf,
    track: Track,
) -> None:
    """Check that images can be read and have the sizes that the annotations say."""
    chosen = [expected[index] for index in spread(len(expected), max_images)]
    if len(chosen) < len(expected):
        found.notes.append(f'{len(chosen)} of {len(expected)} image files were read')

    def read(entry: tuple[str, tuple[int, int]]) -> tuple[str, tuple[int, int], object]:
        return *entry, _attempt(size_of, entry[0])

    pairs = []
    for file, size, actual in track(_in_threads(read, chosen), 'reading images', len(chosen)):
        _add_unreadable(found, 'image', file, actual)
        if isinstance(actual, tuple):
            pairs.append((size, actual))
            if problem := size_problem(size, actual):
                found.add_problem(problem[0], file, problem[1])
    if line := size_likeness(pairs):
        found.add_problem(MOST_ALIKE, Path(chosen[0][0]).parent, line)


def _in_threads(function: Callable, items: Sequence) -> Iterator:
    with ThreadPoolExecutor(NUM_THREADS) as pool, warnings.catch_warnings():
        warnings.simplefilter('ignore')  # Pillow's, of odd metadata and of large images
        # The results of all items at once would be too large: they come in portions.
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
        found.add_problem(f'{what} missing', path, other_spelling(Path(path)))
    elif isinstance(result, Exception):
        found.add_problem(f'{what} unreadable', path, first_line(result))
