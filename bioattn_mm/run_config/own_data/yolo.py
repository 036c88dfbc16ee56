"""Reading own data of detectors in YOLO's format: a text file for each image, with a line for each object.

A line is the index of the class and the centre, width and height of the box, or the corners of a polygon, in shares
of the image's width and height. A YAML file has the names of the classes and where the images of each split are.
"""

import functools
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import yaml

from ...datasets.coco_file import Annotation, Category, CocoFile, ImageEntry
from ...datasets.parallel import run_all
from ...datasets.problem import Problem
from ...errors import InputError
from ...runtime.inputs import IMAGE_SUFFIXES, images_below, is_hidden
from .class_files import CLASSES_FILE, read_names
from .folders import SPLITS, by_split, left_over, subfolders
from .sources import Content, Source, folder_of, image_entry, is_class_name

YAML_SUFFIXES = ('.yaml', '.yml')
# Names of the file that leave no doubt what it is: of others, those that are no YAML are not of interest.
USUAL_NAMES = ('data', 'dataset')
NUM_BOX = 5  # numbers in the line of a box, the fewest
BOX_AND_KEYPOINTS = 'CLASS X Y WIDTH HEIGHT, and {} numbers of keypoints (kpt_shape)'
EXPECTED = 'CLASS X Y WIDTH HEIGHT, or CLASS X1 Y1 X2 Y2 X3 Y3 ...'
ROUNDED = 0.01  # share by which a box that a model predicted may leave the image, and a keypoint its box
NOTHING = ('', 'null', 'Null', 'NULL', '~', [], {})  # what YAML has for no value
# Lines may have these beside boxes and polygons; the notes count them.
SCORE = 'end with a score, as of predictions, which is not used'
TRACK = 'end with a score and the number of a track, which are not used'
KEYPOINTS = 'have keypoints, of which the box alone is used'
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
        entries_from: The folder that these are seen from; None: that of the file.
        num_keypoints: Numbers of the keypoints in a line, after those of the box; None: the file does not say it.
        notes: What is to be said of the folder, once.
    """

    path: Path
    classes: tuple[str, ...]
    root: str = ''
    entries: dict[str, list[str]] = field(default_factory=dict)
    entries_from: Path | None = None
    num_keypoints: int | None = None
    notes: list[str] = field(default_factory=list)


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
    if source.is_file() and source.suffix == '.data':
        return _read_darknet(source)
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
    darknet = sorted(folder.glob('*.data')) if folder.is_dir() and not source.is_file() else []
    if darknet:
        return _read_darknet(darknet[0])
    return _without_data_file(folder)


def _read_darknet(path: Path) -> DataFile:
    """Read Darknet's data file, as of CVAT: `names = obj.names`, and `train = train.txt`, a list of images."""
    pairs = (line.partition('=') for line in _text(path).splitlines() if not line.lstrip().startswith('#'))
    entries = {key.strip(): value.strip() for key, sign, value in pairs if sign}
    names = next((place for place in _moved(path.parent, entries.get('names', '')) if place.is_file()), None)
    if names is None:
        raise InputError(f'{path} names {entries.get("names")!r} as the file of names, which is not there')
    data = DataFile(path, read_names(names))
    for split, key in by_split(filter(_is_split, entries), path).items():
        data.entries[split] = [entries[key]]
    if not data.entries:
        raise InputError(f'{path} names no images: expected train = FILE, a list of images')
    return data


def _without_data_file(folder: Path) -> DataFile | None:
    """The folders of images and labels where no file says them, and the names are in classes.txt.

    It stands in the folder, as of Label Studio, or beside the labels, as of labelImg, which may be beside the images.
    """
    labels = find_labels(folder)
    if labels is None:
        return None
    above = [place for place in labels.parents if place.is_relative_to(folder)]
    names = next((place / CLASSES_FILE for place in (folder, *above) if (place / CLASSES_FILE).is_file()), None)
    if names is None:
        return None
    data = DataFile(names, read_names(names), entries_from=folder)
    images = folder / 'images'
    for split, name in by_split(subfolders(images), images).items():
        data.entries[split] = [f'images/{name}']
    for split, name in by_split(subfolders(folder), folder).items():
        place = f'{name}/images' if (folder / name / 'images').is_dir() else name
        if split not in data.entries and images_below(folder / place, required=False):
            data.entries[split] = [place]
    if data.entries and images.is_dir():
        data.notes = left_over(images, [folder / place for places in data.entries.values() for place in places])
    data.entries = data.entries or dict(train=['images' if images.is_dir() else '.'])
    return data


def find_labels(folder: Path) -> Path | None:
    """A text file in a folder of labels, or beside an image of its name; None without."""
    for place in ('labels', '*/labels'):
        for path in folder.glob(f'{place}/**/*.txt'):
            if path.name != CLASSES_FILE and not is_hidden(path.relative_to(folder)):
                return path
    for pattern in ('*.txt', '*/*.txt'):
        for path in folder.glob(pattern):
            if any(path.with_suffix(suffix).is_file() for suffix in IMAGE_SUFFIXES):
                return path
    return None


def _is_split(key: str) -> bool:
    """Whether the key of a data file is that of a split."""
    return any(key.lower() in words for words in SPLITS.values())


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding='utf-8-sig')
    except UnicodeDecodeError as error:
        raise InputError(f'{path} is no text in UTF-8') from error


def _read_yaml(path: Path) -> DataFile | None:
    """Read a YAML file; None if it says nothing of YOLO's data.

    Raises:
        InputError: It is no YAML, or what it says cannot be.
    """
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
    entries = {}
    keys = [key for key in document if isinstance(key, str) and _is_split(key) and document[key] not in NOTHING]
    for split, key in by_split(keys, path).items():
        value = document[key]
        entries[split] = value if isinstance(value, list) else [value]
        wrong = [entry for entry in entries[split] if not isinstance(entry, str)]
        if wrong:
            raise InputError(f'{path}: {split} is {wrong[0]!r:.60}, expected a folder of images or a list of some')
    if not entries:
        return None
    root = document.get('path') or ''
    root = '' if root in NOTHING else root
    if not isinstance(root, str):
        raise InputError(f'{path}: path is {root!r:.60}, expected a folder')
    return DataFile(path, _class_names(path, document), root, entries, num_keypoints=_num_keypoints(path, document))


def _num_keypoints(path: Path, document: dict) -> int | None:
    """The numbers of the keypoints in a line, of `kpt_shape`, their count and that of the numbers of each."""
    if 'kpt_shape' not in document:
        return None
    shape = document['kpt_shape']
    if not (isinstance(shape, list) and len(shape) == 2 and all(map(str.isdecimal, shape)) and shape[1] in '23'):
        raise InputError(f'{path}: kpt_shape is {shape!r:.60}, expected the number of keypoints, and 2 or 3')
    return int(shape[0]) * int(shape[1])


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
    names = [name.strip() if isinstance(name, str) else str(name) for name in names]
    wrong = [name for name in names if not is_class_name(name) or names.count(name) > 1]
    if wrong:
        raise InputError(f'{path}: names has {wrong[0]!r:.60}, expected each class to have a name of its own')
    number = document.get('nc')
    if number is not None and number not in NOTHING and number != str(len(names)):
        raise InputError(f'{path}: nc is {number:.20}, and there are {len(names)} names')
    return tuple(names)


def _places(data: DataFile, entry: str) -> list[Path]:
    """Where an entry of a YAML file may be: `path` is seen from the file or the working directory, or was moved."""
    folder, root = data.entries_from or data.path.parent, Path(os.path.expanduser(data.root))
    roots = [folder / root, root, folder] if data.root else [folder]
    return [each for place in roots for each in _moved(place, entry)]


def _moved(folder: Path, name: str) -> list[Path]:
    """Where a file may be whose name a program has written, seen from a folder.

    Roboflow writes ../train/images for train/images, CVAT data/train.txt for train.txt, Windows a backslash for /.
    """
    plain = name.replace('\\', '/')
    return [
        folder / each for each in dict.fromkeys((name, plain, plain.removeprefix('../'), plain.removeprefix('data/')))
    ]


def _read(data: DataFile, places: list[Path], _: object = None) -> Content:
    """Read the images of a split and their labels; their classes are those of the YAML file."""
    images: list[Path] = []
    faults: list[Problem] = []
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
    num_labelled = 0
    extra: Counter = Counter()
    for image, entry in zip(images, entries):
        if isinstance(entry, Problem):
            faults.append(entry)
            continue
        file.images.append(entry)
        labels = label_file(image)
        if labels.is_file():
            num_labelled += 1
            _read_labels(labels, entry, data, file, extra)
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
    content.notes += [*data.notes, *(f'{number} lines {what}' for what, number in extra.items())]
    data.notes = []
    return content


def label_file(image: Path) -> Path:
    """Where the labels of an image are: in the folder labels beside that of the images, or beside the image."""
    parts, beside = list(image.parts), image.with_suffix('.txt')
    if 'images' not in parts[:-1]:
        return beside
    parts[len(parts) - 2 - parts[-2::-1].index('images')] = 'labels'
    labels = Path(*parts).with_suffix('.txt')
    return beside if beside.is_file() and not labels.parent.is_dir() else labels


def _listed(path: Path) -> tuple[list[Path], list[Problem]]:
    """The images that a text file lists, one a line, seen from its folder; and the lines whose image is missing."""
    try:
        lines = path.read_text(encoding='utf-8-sig').splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f'{path} is no text in UTF-8: expected a folder of images, or a list of them') from error
    images, absent = [], []
    for number, line in enumerate(lines, 1):
        if line.strip():
            tried = _moved(path.parent, line.strip())
            image = next((place for place in tried if place.is_file()), None)
            if image is not None:
                images.append(image)
            else:
                absent.append(Problem('image missing', str(path), f'line {number}: there is no {tried[0]}'))
    return images, absent


def _read_labels(path: Path, image: ImageEntry, data: DataFile, file: CocoFile, extra: Counter) -> None:
    """Add the objects of an image to a file, and the lines that cannot be used to its faults.

    Args:
        path: The labels.
        image: The image.
        data: The data file.
        file: Changed in place.
        extra: Counts the lines that have more than boxes and polygons, by what is said of it.
    """
    try:
        lines = path.read_text(encoding='utf-8-sig').splitlines()
    except UnicodeDecodeError:
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
        is_short = len(numbers) + 1 < NUM_BOX
        if is_short or data.num_keypoints not in (None, len(numbers) + 1 - NUM_BOX) and len(numbers) + 1 != NUM_BOX:
            expected = EXPECTED if data.num_keypoints is None else BOX_AND_KEYPOINTS.format(data.num_keypoints)
            detail = f'line {number}: {line.strip()[:60]!r}, expected {expected}'
            file.faults.append(Problem('label malformed', str(path), detail))
            continue
        if label not in range(len(data.classes)):
            names = f'{len(data.classes)} names of {data.path}'
            detail = f'line {number}: class {words[0]}, expected 0 to {len(data.classes) - 1} for the {names}'
            file.faults.append(Problem('class out of range', str(path), detail))
            continue
        what = _what_follows_box(words[1:], numbers, data.num_keypoints)
        if what:
            extra[what] += 1
            numbers = numbers[: NUM_BOX - 1] if what != SCORE else numbers[: len(numbers) // 2 * 2]
        if outside := [each for each in numbers if not -TOLERANCE <= each <= 1 + TOLERANCE]:
            detail = f'line {number}: {outside[0]:g}, expected shares of the width and height, 0 to 1'
            file.faults.append(Problem('coordinate out of range', str(path), detail))
        else:
            entry = _annotation(int(label), numbers, image, len(file.annotations) + 1)
            entry.source = f'{path}, line {number}'
            file.annotations.append(entry)


def _what_follows_box(words: list[str], numbers: list[float], num_keypoints: int | None) -> str | None:
    """What the numbers of a line are beside those of a box or polygon; None: nothing.

    Args:
        words: The words of the line after the class.
        numbers: Their values.
        num_keypoints: Numbers of the keypoints in each line, if a file says it.
    """
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
