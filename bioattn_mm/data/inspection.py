"""What is wrong with a dataset, and its statistics: COCO's format, label maps, classes of images."""

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from mmdet.datasets import BaseDetDataset, CocoDataset, CocoPanopticDataset
from mmengine.dataset import BaseDataset
from mmseg.datasets import BaseSegDataset

from ..errors import InputError
from ..runtime.images import ImageKind
from .checks import Problem
from .formats.coco import file_problems, likeness, object_problem, objects_of, read_coco_file
from .formats.label_maps import count_labels, read_label_map
from .image_files import Size, Track, attempt, check_sizes, in_threads, read_size, spread

MOST_ALIKE = 'most entries alike'
SizeOf = Callable[[str], Size]  # what `read_size` says of a file


@dataclass
class Inspection:
    """What was found in a dataset, over all of its parts; sizes are widths and heights in pixels."""

    classes: Sequence[str]
    problems: list[Problem] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)  # the sizes of the files, as the annotations say
    numbers: list[int] = field(default_factory=list)  # the number of objects or classes in each image
    box_sizes: list[tuple[float, float]] = field(default_factory=list)
    num_ignored: int = 0  # the number of crowds, or of pixels that do not count
    num_empty: int = 0  # images without objects or labels, which is nothing wrong
    notes: list[str] = field(default_factory=list)  # what is worth knowing and not wrong

    def __post_init__(self) -> None:
        self.amounts = np.zeros(len(self.classes), np.int64)  # objects, pixels or images of each class
        self.images_of_class = np.zeros(len(self.classes), np.int64)

    def add_problem(self, kind: str, file: object, detail: str = '') -> None:
        self.problems.append(Problem(kind, str(file), detail))

    def add_image(self, file: str, size: Size, amounts: np.ndarray) -> None:
        """Add an image of which each class has an amount of pixels, or 1 or 0."""
        self.files.append(file)
        self.sizes.append(size)
        self.numbers.append(int((amounts > 0).sum()))
        self.amounts += amounts
        self.images_of_class += amounts > 0
        self.num_empty += not amounts.any()


def inspect_dataset(
    found: Inspection,
    dataset: BaseDataset,
    with_mask: bool,
    max_images: int | None,
    decode: bool,
    track: Track,
    kind: ImageKind | None = None,
) -> None:
    """Inspect a dataset built with `lazy_init`, as loading can fail where annotations are wrong, and add to `found`.

    Args:
        with_mask: Whether the training loads masks of objects, which are then checked.
        max_images: Number of image files and label maps to read at most, spread over all; None for all.
        decode: Whether to decode images, not only read their headers.
        track: Shows progress: called with an iterable, what is done, and the number of steps.
        kind: Channels and dtype that the images must have; None: they are loaded as RGB in 8 bits.
    """
    if isinstance(dataset, CocoPanopticDataset):
        raise InputError(
            'panoptic annotations cannot be inspected: inspect the instances or the label maps of the same images '
            'with the config of either, such as configs/transnext/mask2former_tiny_coco.py'
        )
    size_of = functools.partial(read_size, decode=decode, kind=kind)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # Pillow warns of odd metadata and of large images
        if isinstance(dataset, CocoDataset):
            _inspect_coco(found, dataset, with_mask, max_images, size_of, track)
        elif (has_maps := isinstance(dataset, BaseSegDataset)) or not isinstance(dataset, BaseDetDataset):
            _inspect_images(found, dataset, has_maps, max_images, size_of, track)
        else:
            raise InputError(
                f"{type(dataset).__name__} cannot be inspected: expected mmdet's CocoDataset, or a dataset of mmseg "
                'or mmpretrain'
            )


def _inspect_coco(
    found: Inspection, dataset: CocoDataset, with_mask: bool, max_images: int | None, size_of: SizeOf, track: Track
) -> None:
    content = read_coco_file(dataset.ann_file)
    path, first = content.path, len(found.files)
    found.problems += [*content.faults, *file_problems(content, found.classes)]
    folder = Path(dataset.data_prefix.get('img', ''))
    places: dict[object, int] = {}  # of image ids in `files`
    for place, entry in enumerate(content.images):
        places.setdefault(entry.id, place)
        found.files.append(str(folder / entry.file_name))
        found.sizes.append((entry.width, entry.height))

    numbers = np.zeros(len(content.images), np.int64)
    pairs = set()  # pairs of an image and a class
    dropped: Counter = Counter()  # annotations of categories that are no classes
    objects = objects_of(content, found.classes)
    for item, image, label, is_repeated in track(objects, 'checking annotations', len(content.annotations)):
        if image is None:
            found.add_problem('image id unknown', path, f'{item}: image_id {item.image_id!r}')
            continue
        place = places[item.image_id]
        file = found.files[first + place]
        if label is None:
            found.add_problem('category id out of range', file, f'{item}: category_id {item.category_id!r}')
        elif label < 0:
            dropped[item.category_id] += 1
        elif problem := object_problem(item, image, with_mask, is_repeated):
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
    chosen = [first + index for index in spread(len(content.images), max_images)]
    if len(chosen) < len(content.images):
        found.notes.append(f'{len(chosen)} of {len(content.images)} image files were read')
    stated = [(found.files[index], found.sizes[index]) for index in chosen]
    problems, line = check_sizes(stated, size_of, track)
    found.problems += problems
    if line:
        found.add_problem(MOST_ALIKE, Path(stated[0][0]).parent, line)


def _inspect_images(
    found: Inspection, dataset: BaseDataset, has_maps: bool, max_images: int | None, size_of: SizeOf, track: Track
) -> None:
    """Read images, with their label maps if they have such, else with their classes."""
    dataset.full_init()
    infos = [dataset.get_data_info(index) for index in spread(len(dataset), max_images)]
    if infos and (absent := {'img_path', 'seg_map_path' if has_maps else 'gt_label'} - infos[0].keys()):
        raise InputError(f'{type(dataset).__name__} cannot be inspected: its images have no {min(absent)}')
    what = 'images and label maps' if has_maps else 'images'
    if len(infos) < len(dataset):
        found.notes.append(f'{len(infos)} of {len(dataset)} {what} were read')

    def read(info: dict) -> tuple[Size | Problem, np.ndarray | Problem]:
        size = attempt(size_of, info['img_path'], 'image')
        if has_maps:
            return size, attempt(read_label_map, info['seg_map_path'], 'label map')
        labels, last = np.unique(np.asarray(info['gt_label'], int)), len(found.classes) - 1  # multi-label: several
        if not ((labels >= 0) & (labels <= last)).all():
            return size, Problem('label out of range', info['img_path'], f'{labels.tolist()}, expected 0 to {last}')
        return size, np.bincount(labels, minlength=len(found.classes))

    for info, (size, labels) in track(zip(infos, in_threads(read, infos)), f'reading {what}', len(infos)):
        unreadable = [each for each in (size, labels) if isinstance(each, Problem)]
        found.problems += unreadable
        if isinstance(labels, Problem):
            continue
        counts = labels
        if has_maps:
            path = info['seg_map_path']
            if not unreadable and labels.shape[1::-1] != size:
                shape = ' x '.join(map(str, labels.shape[1::-1]))
                found.add_problem('label map of another size', path, f'{shape}, the image is {size[0]} x {size[1]}')
            counts, wrong = count_labels(info, labels, len(found.classes), dataset.ignore_index)
            for kind, detail in wrong:
                found.add_problem(kind, path, detail)
        if counts is not None and not unreadable:
            found.add_image(info['img_path'], size, counts)
            if has_maps:
                found.num_ignored += labels.shape[0] * labels.shape[1] - int(counts.sum())
