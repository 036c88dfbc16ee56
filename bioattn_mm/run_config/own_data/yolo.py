"""Reading own data of detectors in YOLO's format: a text file for each image, with a line for each object.

A line is the index of the class and the centre, width and height of the box, or the corners of a polygon, in shares
of the image's width and height. A YAML file has the names of the classes and where the images of each split are.
"""

import functools
import os
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import yaml

from ...datasets.coco_file import Annotation, Category, CocoFile, ImageEntry
from ...datasets.parallel import run_all
from ...datasets.problem import Problem
from ...errors import InputError
from ...runtime.inputs import IMAGE_SUFFIXES, images_below, is_hidden
from .class_files import CLASSES_FILE, classes_and_colours
from .folders import SPLITS
from .sources import Content, Source, folder_of, image_entry, is_class_name

YAML_SUFFIXES = ('.yaml', '.yml')
# Names of the file that leave no doubt what it is: of others, those that are no YAML are not of interest.
USUAL_NAMES = ('data', 'dataset')
NUM_BOX = 5  # numbers in the line of a box, the fewest
EXPECTED = 'CLASS X Y WIDTH HEIGHT, or CLASS X1 Y1 X2 Y2 X3 Y3 ...'
# Shares of the width or height by which a coordinate may be over the border: programs round.
TOLERANCE = 1e-4


@dataclass
class DataFile:
    """What a YAML file says.

    Attributes:
        path: The file.
        classes: Names of the classes in the order of their indices.
        root: The folder that `path` in it names, as it stands there; '' without.
        entries: Folders of images, or text files that list some, by split, as they stand there.
    """

    path: Path
    classes: tuple[str, ...]
    root: str = ''
    entries: dict[str, list[str]] = field(default_factory=dict)


def find_yolo(source: Path) -> dict[str, Source]:
    """The splits of a folder in YOLO's format, or of its YAML file or `classes.txt`; none if it is in another format.

    Raises:
        InputError: It is in YOLO's format and cannot be used.
    """
    data = _data_file(source)
    if data is None:
        return {}
    found = {}
    for split, entries in data.entries.items():
        places, problem = [], ''
        for entry in entries:
            place = next((path for path in _places(data, entry) if path.exists()), None)
            if place is None:
                tried = ', '.join(dict.fromkeys(str(path) for path in _places(data, entry)))
                problem = f'{data.path} names {entry} as {split}, which is not there: looked for {tried}'
            else:
                places.append(place)
        if problem and split != 'test':  # which many exports name and do not have
            raise InputError(problem)
        if not problem and places:
            found[split] = Source(data.path, tuple(places), functools.partial(_read, data, places))
    return found


def _data_file(source: Path) -> DataFile | None:
    """The YAML file of a folder, or what stands for it; None without."""
    if source.is_file() and source.suffix in YAML_SUFFIXES:
        data = _read_yaml(source)
        if data is None:
            raise InputError(f"{source} is no data file of YOLO's: expected names of classes, and train and val")
        return data
    if source.is_file() and source.name != CLASSES_FILE:
        return None
    folder = source.parent if source.is_file() else source
    found = []
    paths = [] if source.is_file() else sorted(path for suffix in YAML_SUFFIXES for path in source.glob(f'*{suffix}'))
    for path in paths:
        try:
            found += [data for data in (_read_yaml(path),) if data is not None]
        except InputError:
            if path.stem in USUAL_NAMES:
                raise
    if len(found) > 1:
        names = ', '.join(str(data.path) for data in found)
        raise InputError(f"{source} has {len(found)} data files of YOLO's: {names}; name one with --data")
    if found:
        return found[0]
    # As Label Studio exports: the names alone.
    if find_labels(folder) is None or not (folder / CLASSES_FILE).is_file():
        return None
    data = DataFile(folder / CLASSES_FILE, classes_and_colours([folder])[0])
    for split, words in SPLITS.items():
        names = [name for word in words for name in (f'images/{word}', f'{word}/images') if (folder / name).is_dir()]
        if names:
            data.entries[split] = names[:1]
    data.entries = data.entries or dict(train=['images'])
    return data


def find_labels(folder: Path) -> Path | None:
    """A text file in a folder of labels; None without."""
    return next((path for place in ('labels', '*/labels') for path in folder.glob(f'{place}/**/*.txt')), None)


def _read_yaml(path: Path) -> DataFile | None:
    """Read a YAML file; None if it says nothing of YOLO's data.

    Raises:
        InputError: It is no YAML, or what it says cannot be.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding='utf-8-sig'))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, 'problem_mark', None)
        where = f', line {mark.line + 1},' if mark else ''
        reason = getattr(error, 'problem', None) or (str(error).splitlines() or [''])[0]
        raise InputError(f'{path}{where} is no YAML: {reason}') from error
    if not isinstance(document, dict) or 'names' not in document:
        return None
    entries = {}
    for split, words in SPLITS.items():
        value = next((document[word] for word in words if document.get(word)), None)
        if value is None:
            continue
        entries[split] = value if isinstance(value, list) else [value]
        wrong = [entry for entry in entries[split] if not isinstance(entry, str)]
        if wrong:
            raise InputError(f'{path}: {split} is {wrong[0]!r:.60}, expected a folder of images or a list of some')
    if not entries:
        return None
    if 'kpt_shape' in document:
        raise InputError(f'{path} is of keypoints (kpt_shape): expected boxes or polygons')
    root = document.get('path') or ''
    if not isinstance(root, str):
        raise InputError(f'{path}: path is {root!r:.60}, expected a folder')
    return DataFile(path, _class_names(path, document), root, entries)


def _class_names(path: Path, document: dict) -> tuple[str, ...]:
    """The names of the classes in a YAML file, a list or a dict by index."""
    names = document['names']
    if isinstance(names, dict):
        keys = list(map(str, names))
        if sorted(keys) != sorted(map(str, range(len(keys)))):
            raise InputError(
                f'{path}: names has the indices {", ".join(keys)[:60]}, expected 0 to {len(keys) - 1}, each once'
            )
        names = [name for _, name in sorted(names.items(), key=lambda item: int(item[0]))]
    if not isinstance(names, list) or not names:
        raise InputError(f'{path}: names is {names!r:.60}, expected a list of names or a dict of them by index')
    names = [name.strip() if isinstance(name, str) else str(name) for name in names]  # such as the digits
    wrong = [name for name in names if not is_class_name(name) or names.count(name) > 1]
    if wrong:
        raise InputError(f'{path}: names has {wrong[0]!r:.60}, expected each class to have a name of its own')
    number = document.get('nc')
    if number is not None and number != len(names):
        raise InputError(f'{path}: nc is {number!r:.20}, and there are {len(names)} names')
    return tuple(names)


def _places(data: DataFile, entry: str) -> list[Path]:
    """Where an entry of a YAML file may be: `path` is seen from the file or the working directory, or was moved."""
    folder, root = data.path.parent, Path(os.path.expanduser(data.root))
    roots = [folder / root, root, folder] if data.root else [folder]
    # Roboflow writes ../train/images for train/images.
    entries = dict.fromkeys((entry, entry.removeprefix('../')))
    return [place / each for place in roots for each in entries]


def _read(data: DataFile, places: list[Path], _: object = None) -> Content:
    """Read the images of a split and their labels; their classes are those of the YAML file."""
    images, faults = [], []
    for place in places:
        listed, absent = (images_below(place, required=False), []) if place.is_dir() else _listed(place)
        images, faults = images + listed, faults + absent
    if any(image.is_absolute() for image in images):  # then all, to have a folder in common
        images = [image.absolute() for image in images]
    images = list(dict.fromkeys(images))
    if not images and not faults:
        raise InputError(
            f'{data.path} names {places[0]}, in which no images are: expected files that end in '
            f'{", ".join(IMAGE_SUFFIXES)}'
        )
    categories = [Category(index + 1, name) for index, name in enumerate(data.classes)]
    file = CocoFile(str(data.path), [], [], categories, faults)
    content = Content(file, folder_of(images) if images else places[0])
    entries = run_all(lambda index: image_entry(index + 1, images[index], content.images), len(images))
    num_scored = num_labelled = 0
    for image, entry in zip(images, entries):
        if isinstance(entry, Problem):
            faults.append(entry)
            continue
        file.images.append(entry)
        labels = label_file(image)
        if labels.is_file():
            num_labelled += 1
            num_scored += _read_labels(labels, entry, data, file)
    if images and not num_labelled:
        raise InputError(
            f'no image of {places[0]} has labels: expected text files such as {label_file(images[0])}; an image '
            'without one has no objects'
        )
    known = set(map(label_file, images))
    folders = {label_file(place / 'x').parent for place in places if place.is_dir()} - set(places)
    alone = (
        path
        for folder in sorted(folders)
        for path in sorted(folder.rglob('*.txt'))
        if path not in known and not is_hidden(path.relative_to(folder))
    )
    content.left_out = [Problem('labels without image', str(path)) for path in alone if path.name != CLASSES_FILE]
    if len(images) > num_labelled:
        content.notes.append(f'{len(images) - num_labelled} of {len(images)} images have no labels, and no objects')
    if num_scored:
        content.notes.append(f'{num_scored} lines end with a score, as of predictions, which is not used')
    return content


def label_file(image: Path) -> Path:
    """Where the labels of an image are: in the folder labels beside that of the images, or beside the image."""
    parts = list(image.parts)
    if 'images' in parts[:-1]:
        parts[len(parts) - 2 - parts[-2::-1].index('images')] = 'labels'
    return Path(*parts).with_suffix('.txt')


def _listed(path: Path) -> tuple[list[Path], list[Problem]]:
    """The images that a text file lists, one a line, seen from its folder; and the lines whose image is missing."""
    try:
        lines = path.read_text(encoding='utf-8-sig').splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f'{path} is no text in UTF-8: expected a folder of images, or a list of them') from error
    images, absent = [], []
    for number, line in enumerate(lines, 1):
        if line.strip():
            image = path.parent / line.strip()
            if image.is_file():
                images.append(image)
            else:
                absent.append(Problem('image missing', str(path), f'line {number}: there is no {image}'))
    return images, absent


def _read_labels(path: Path, image: ImageEntry, data: DataFile, file: CocoFile) -> int:
    """Add the objects of an image to a file, and the lines that cannot be used to its faults.

    Returns:
        How many lines end with a score.
    """
    try:
        lines = path.read_text(encoding='utf-8-sig').splitlines()
    except UnicodeDecodeError:
        file.faults.append(Problem('labels unreadable', str(path), 'no text in UTF-8'))
        return 0
    num_scored = 0
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        try:
            label, *numbers = map(float, words)
        except ValueError:
            numbers = []
        if len(numbers) + 1 < NUM_BOX:
            detail = f'line {number}: {line.strip()[:60]!r}, expected {EXPECTED}'
            file.faults.append(Problem('label malformed', str(path), detail))
        elif label not in range(len(data.classes)):
            names = f'{len(data.classes)} names of {data.path}'
            detail = f'line {number}: class {words[0]}, expected 0 to {len(data.classes) - 1} for the {names}'
            file.faults.append(Problem('class out of range', str(path), detail))
        elif outside := [each for each in numbers if not -TOLERANCE <= each <= 1 + TOLERANCE]:
            detail = f'line {number}: {outside[0]:g}, expected shares of the width and height, 0 to 1'
            file.faults.append(Problem('coordinate out of range', str(path), detail))
        else:
            # As predictions are written: an odd number of coordinates is none.
            num_scored += len(numbers) % 2
            numbers = numbers[: len(numbers) // 2 * 2]
            entry = _annotation(int(label), numbers, image, len(file.annotations) + 1)
            entry.source = f'{path}, line {number}'
            file.annotations.append(entry)
    return num_scored


def _annotation(label: int, numbers: list[float], image: ImageEntry, number: int) -> Annotation:
    """An object of four numbers, a box, or of more, a polygon."""
    xs, ys = [x * image.width for x in numbers[::2]], [y * image.height for y in numbers[1::2]]
    if len(numbers) == NUM_BOX - 1:
        (x, width), (y, height) = xs, ys
        box = (x - width / 2, y - height / 2, width, height)
        return Annotation(image.id, label + 1, box, number, area=width * height, iscrowd=0)
    box = (min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys))
    corners = zip(xs, ys, xs[1:] + xs[:1], ys[1:] + ys[:1])
    area = abs(sum(x * next_y - next_x * y for x, y, next_x, next_y in corners)) / 2
    polygon = [coordinate for corner in zip(xs, ys) for coordinate in corner]
    entry = Annotation(image.id, label + 1, box, number, area=area, iscrowd=0)
    entry.segmentation = msgspec.Raw(msgspec.json.encode([polygon]))
    return entry
