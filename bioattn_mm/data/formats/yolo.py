"""Reading own data of detectors in YOLO's format: a text file for each image, with a line for each object.

A line is the index of the class and the centre, width and height of the box, or the corners of a polygon, in shares
of the image's width and height. A YAML file has the names of the classes and the images of each split.
"""

import functools
import math
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import yaml

from ...errors import InputError
from ...runtime.paths import IMAGE_SUFFIXES, images_below, is_hidden
from ..checks import Problem
from ..image_files import in_threads
from .class_files import CLASSES_FILE, read_names
from .coco import NAME, Annotation, Category, CocoFile, ImageEntry, Source, image_entry
from .folders import SPLITS, by_split, left_over, read_lines, subfolders

YAML_SUFFIXES = ('.yaml', '.yml')
NUM_BOX = 5  # a line has at least the numbers of a box
ROUNDED = 0.01  # share by which a box that a model predicted may leave the image, and a keypoint its box
NOTHING = ('', 'null', 'Null', 'NULL', '~', [], {})  # YAML's words for no value
# Lines may have these beside boxes and polygons; their number is said of each split.
SCORE = 'end with a score, as of predictions, which is not used'
TRACK = 'end with a score and the number of a track, which are not used'
KEYPOINTS = 'have keypoints, of which the box alone is used'
# Shares of the width or height by which a coordinate may be over the border: programs round.
TOLERANCE = 1e-4


@dataclass
class DataFile:
    """What a YAML file, or one that stands for it, says."""

    path: Path
    classes: tuple[str, ...]
    places: dict[str, list[Path]]  # folders of images, or lists of some, by split
    num_keypoints: int | None = None  # how many numbers of a line are of keypoints, such as 51 for 17 of them
    notes: list[str] = field(default_factory=list)  # each is said once


def find_yolo(source: Path) -> dict[str, Source]:
    """The splits of a folder in YOLO's format, or of its YAML file or `classes.txt`; none in another format."""
    data = _data_file(source)
    return {
        split: Source(data.path, tuple(places), functools.partial(_read, data, places))
        for split, places in (data.places.items() if data else ())
    }


def _data_file(source: Path) -> DataFile | None:
    """The YAML file of a folder, or what stands for it; None without."""
    if source.is_file():
        if source.suffix in YAML_SUFFIXES:
            if (data := _read_yaml(source)) is None:
                raise InputError(f"{source} is no data file of YOLO's: expected names of classes, and train and val")
            return data
        if source.suffix == '.data':
            return _read_darknet(source)
        return _without_data_file(source.parent) if source.name == CLASSES_FILE else None
    found = []
    for path in sorted(path for suffix in YAML_SUFFIXES for path in source.glob(f'[!.]*{suffix}')):
        found += filter(None, [_read_yaml(path)])
    if len(found) > 1:
        names = ', '.join(str(data.path) for data in found)
        raise InputError(f"{source} has {len(found)} data files of YOLO's: {names}; name one with --data")
    if found:
        return found[0]
    darknet = min(source.glob('[!.]*.data'), default=None)
    return _read_darknet(darknet) if darknet else _without_data_file(source)


def _read_yaml(path: Path) -> DataFile | None:
    """Read a YAML file; None if it says nothing of YOLO's data."""
    try:
        # The loader keeps all values as text: YAML takes the names no, 007 and 12:30 for a truth value and numbers.
        document = yaml.load(path.read_text(encoding='utf-8-sig'), yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, 'problem_mark', None)
        where = f', line {mark.line + 1},' if mark else ''
        reason = getattr(error, 'problem', None) or (str(error).splitlines() or [''])[0]
        raise InputError(f'{path}{where} is no YAML: {reason}') from error
    if not isinstance(document, dict) or 'names' not in document:
        return None
    entries = {
        split: document[key] if isinstance(document[key], list) else [document[key]]
        for split, key in _splits_named_in((key for key in document if document[key] not in NOTHING), path).items()
    }
    if not entries:
        return None
    # `path` may be relative to the file or to the working directory; where the data were moved, the file's folder is.
    root = Path(os.path.expanduser(str(document.get('path', ''))))
    roots = list(dict.fromkeys([path.parent / root, root if root.parts else path.parent, path.parent]))
    shape = document.get('kpt_shape', '')  # the number of keypoints, and that of the numbers of each
    if shape not in NOTHING and not (isinstance(shape, list) and all(str(each).isdecimal() for each in shape)):
        raise InputError(f'{path}: kpt_shape is {shape!r:.60}, expected two numbers such as [17, 3]')
    num_keypoints = None if shape in NOTHING else math.prod(map(int, shape))
    return DataFile(path, _class_names(path, document['names']), _places(path, entries, roots), num_keypoints)


def _class_names(path: Path, names: object) -> tuple[str, ...]:
    """The names of the classes in a YAML file, a list or a dict by index."""
    if isinstance(names, dict):
        keys = list(map(str, names))
        if sorted(keys) != sorted(map(str, range(len(keys)))):
            raise InputError(
                f'{path}: names has the indices {", ".join(keys)[:60]}, expected 0 to {len(keys) - 1}, each once'
            )
        names = [name for _, name in sorted(names.items(), key=lambda item: int(item[0]))]
    if not isinstance(names, list) or not names:
        raise InputError(f'{path}: names is {names!r:.60}, expected a list of names or a dict of them by index')
    names = [str(name).strip() for name in names]
    if wrong := [name for name in names if not re.search(NAME, name) or names.count(name) > 1]:
        raise InputError(f'{path}: names has {wrong[0]!r:.60}, expected each class to have a name of its own')
    return tuple(names)


def _read_darknet(path: Path) -> DataFile:
    """Read Darknet's data file, as of CVAT: `names = obj.names`, and `train = train.txt`, a list of images."""
    pairs = (line.partition('=') for line in read_lines(path) if not line.lstrip().startswith('#'))
    entries = {key.strip(): value.strip() for key, _, value in pairs if value.strip()}
    names = next((place for place in _moved(path.parent, entries.get('names', '')) if place.is_file()), None)
    if names is None:
        raise InputError(f'{path} names {entries.get("names")!r} as the file of names, which is not there')
    lists = {split: [entries[key]] for split, key in _splits_named_in(entries, path).items()}
    return DataFile(path, read_names(names), _places(path, lists, [path.parent]))


def _splits_named_in(keys: Iterable[object], path: Path) -> dict[str, str]:
    """The key of each split among the keys of a data file."""
    words = {word for names in SPLITS.values() for word in names}
    return by_split((key for key in keys if str(key).lower() in words), path)


def _places(path: Path, entries: dict[str, list], roots: list[Path]) -> dict[str, list[Path]]:
    """Where the entries of each split in a data file are, seen from one of several folders."""
    found: dict[str, list[Path]] = {}
    for split, names in entries.items():
        for name in map(str, names):
            tried = [each for root in roots for each in _moved(root, name)]
            if there := [each for each in tried if each.exists()]:
                found.setdefault(split, []).append(there[0])
            elif split != 'test':  # many exports name test images that they do not have
                looked = ', '.join(dict.fromkeys(map(str, tried)))
                raise InputError(f'{path} names {name} as {split}, which is not there: looked for {looked}')
    return found


def _moved(folder: Path, name: str) -> list[Path]:
    """Where a file may be whose name a program has written, seen from a folder.

    Roboflow writes ../train/images for train/images, CVAT data/train.txt for train.txt, Windows a backslash for /.
    """
    plain = name.replace('\\', '/')
    names = name, plain, plain.removeprefix('../'), plain.removeprefix('data/')
    return [folder / each for each in dict.fromkeys(names)]


def _without_data_file(folder: Path) -> DataFile | None:
    """The folders of images and labels where no file says them; classes.txt is in the folder or beside the labels."""
    labels = find_labels(folder)
    above = (
        (place / CLASSES_FILE for place in (folder, *labels.parents) if place.is_relative_to(folder))
        if labels
        else ()
    )
    names = next((path for path in above if path.is_file()), None)
    if names is None:
        return None
    images = folder / 'images'
    places = {split: [images / name] for split, name in by_split(subfolders(images), images).items()}
    for split, name in by_split(subfolders(folder), folder).items():
        place = folder / name
        place = place / 'images' if (place / 'images').is_dir() else place
        if split not in places and images_below(place, required=False):
            places[split] = [place]
    notes = left_over(images, sum(places.values(), [])) if places else []
    return DataFile(
        names, read_names(names), places or dict(train=[images if images.is_dir() else folder]), notes=notes
    )


def find_labels(folder: Path) -> Path | None:
    """A text file in a folder of labels, or beside an image of its name; None without."""
    for place in ('labels', '*/labels'):
        for path in folder.glob(f'{place}/**/*.txt'):
            if path.name != CLASSES_FILE and not is_hidden(path.relative_to(folder)):
                return path
    suffixes = (*IMAGE_SUFFIXES, *map(str.upper, IMAGE_SUFFIXES))  # cameras write .JPG
    for pattern in ('*.txt', '*/*.txt'):
        for path in folder.glob(pattern):
            if any(path.with_suffix(suffix).is_file() for suffix in suffixes):
                return path
    return None


def _read(data: DataFile, places: list[Path], _: object) -> CocoFile:
    """Read the images of a split and their labels; their classes are those of the data file."""
    images: list[Path] = []
    faults: list[Problem] = []
    for place in places:
        listed, absent = (images_below(place, required=False), []) if place.is_dir() else _listed(place)
        images, faults = images + listed, faults + absent
    if any(image.is_absolute() for image in images):  # all become absolute, so that they share a folder
        images = [image.absolute() for image in images]
    images = list(dict.fromkeys(images))
    if not images and not faults:
        raise InputError(
            f'{data.path} names {places[0]}, in which no images are: expected files that end in '
            f'{", ".join(IMAGE_SUFFIXES)}'
        )
    categories = [Category(index + 1, name) for index, name in enumerate(data.classes)]
    folder = Path(os.path.commonpath([image.parent for image in images])) if images else places[0]
    file = CocoFile(str(data.path), [], [], categories, faults, folder=folder)
    entries = in_threads(lambda item: image_entry(item[0], item[1], folder), list(enumerate(images, start=1)))
    num_labelled = 0
    extra: Counter = Counter()  # lines that have more than boxes and polygons, by what is said of it
    for image, entry in zip(images, entries):
        if isinstance(entry, Problem):
            faults.append(entry)
            continue
        file.images.append(entry)
        labels = label_file(image)
        if labels.is_file():
            num_labelled += 1
            _read_labels(labels, entry, data, file, extra)
    if file.images and not num_labelled:
        raise InputError(
            f'no image of {places[0]} has labels: expected text files such as {label_file(images[0])}; an image '
            'without one has no objects'
        )
    if unlabelled := len(file.images) - num_labelled:
        file.changes.append(f'{unlabelled} of {len(file.images)} images have no labels, and no objects')
    file.changes += [*data.notes, *(f'{number} lines {what}' for what, number in extra.items())]
    data.notes = []
    return file


def label_file(image: Path) -> Path:
    """Where the labels of an image are: in the folder labels beside that of the images, or beside the image."""
    beside = image.with_suffix('.txt')
    folder = next((each for each in image.parents if each.name == 'images'), None)
    if folder is None:
        return beside
    labels = folder.with_name('labels') / beside.relative_to(folder)
    return beside if beside.is_file() and not labels.parent.is_dir() else labels


def _listed(path: Path) -> tuple[list[Path], list[Problem]]:
    """The images that a text file lists, one a line, seen from its folder; and the lines whose image is missing."""
    images, absent = [], []
    for number, line in enumerate(read_lines(path, 'a folder of images, or a list of them'), 1):
        if line.strip():
            tried = _moved(path.parent, line.strip())
            if there := [place for place in tried if place.is_file()]:
                images.append(there[0])
            else:
                absent.append(Problem('image missing', str(path), f'line {number}: there is no {tried[0]}'))
    return images, absent


def _read_labels(path: Path, image: ImageEntry, data: DataFile, file: CocoFile, extra: Counter) -> None:
    """Add the objects in the labels of an image to a file, and the lines that cannot be used to its faults."""
    try:
        lines = read_lines(path)
    except InputError:
        file.faults.append(Problem('labels unreadable', str(path), 'no text in UTF-8'))
        return
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        try:
            label, *numbers = map(float, words)
        except ValueError:
            numbers = []
        count = len(numbers) + 1
        problem = None
        if count < NUM_BOX or data.num_keypoints not in (None, count - NUM_BOX) and count != NUM_BOX:
            expected = 'CLASS X Y WIDTH HEIGHT, or CLASS X1 Y1 X2 Y2 X3 Y3 ...'
            if data.num_keypoints is not None:
                expected = f'CLASS X Y WIDTH HEIGHT, and {data.num_keypoints} numbers of keypoints (kpt_shape)'
            problem = 'label malformed', f'{line.strip()[:60]!r}, expected {expected}'
        elif label not in range(len(data.classes)):
            names = f'{len(data.classes)} names of {data.path}'
            problem = 'class out of range', f'class {words[0]}, expected 0 to {len(data.classes) - 1} for the {names}'
        elif what := _what_follows_box(words[1:], numbers, data.num_keypoints):
            extra[what] += 1
            numbers = numbers[: NUM_BOX - 1] if what != SCORE else numbers[: len(numbers) // 2 * 2]
        outside = [each for each in numbers if not -TOLERANCE <= each <= 1 + TOLERANCE]
        if problem is None and outside:
            detail = f'{outside[0]:g}, expected shares of the width and height, 0 to 1'
            problem = 'coordinate out of range', detail
        if problem:
            file.faults.append(Problem(problem[0], str(path), f'line {number}: {problem[1]}'))
            continue
        points = np.reshape(numbers, (-1, 2)) * (image.width, image.height)
        mask = msgspec.UNSET
        if len(points) == 2:
            centre, size = points
            low, area = centre - size / 2, size.prod()
        else:
            low, (x, y) = points.min(0), points.T
            size, area = points.max(0) - low, abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2
            mask = msgspec.Raw(msgspec.json.encode([points.ravel().tolist()]))
        box = (*low.tolist(), *size.tolist())
        entry = Annotation(
            image.id, int(label) + 1, box, len(file.annotations) + 1, float(area), 0, segmentation=mask
        )
        entry.source = f'{path}, line {number}'
        file.annotations.append(entry)


def _what_follows_box(words: list[str], numbers: list[float], num_keypoints: int | None) -> str | None:
    """What follows the numbers of a box or polygon in a line; None if nothing does."""
    rest = numbers[NUM_BOX - 1 :]
    if num_keypoints is not None:
        return KEYPOINTS if rest else None
    x, y, width, height = numbers[: NUM_BOX - 1]
    # The first numbers of a polygon are seldom a box inside of the image.
    is_box = abs(x - 0.5) <= 0.5 - width / 2 + ROUNDED and abs(y - 0.5) <= 0.5 - height / 2 + ROUNDED
    states = words[NUM_BOX - 1 :][2::3]
    # Each keypoint is x, y and 0, 1 or 2: not labelled, hidden, visible.
    if is_box and len(rest) >= 6 and len(rest) % 3 == 0 and set(states) <= {'0', '1', '2'}:
        points = [point for *point, state in zip(rest[::3], rest[1::3], states) if state != '0']
        if all(abs(u - x) <= width / 2 + ROUNDED and abs(v - y) <= height / 2 + ROUNDED for u, v in points):
            return KEYPOINTS
    # The number of a track is whole.
    if is_box and len(rest) == 2 and words[-1].isdecimal() and not words[-2].isdecimal():
        return TRACK
    # Coordinates are pairs.
    return SCORE if len(rest) % 2 else None
