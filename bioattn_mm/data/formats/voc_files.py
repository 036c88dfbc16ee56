"""Pascal VOC's folders: where they have images and annotations, the lists of each split, and the XML files."""

import math
import re
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from ...errors import InputError, printable
from ...runtime.paths import is_hidden
from ..checks import Problem
from .folders import by_split, read_lines

XML_FOLDERS = ('Annotations', 'annotations')
IMAGE_FOLDERS = ('JPEGImages', 'images')
CLASS_MAPS, OBJECT_MAPS = 'SegmentationClass', 'SegmentationObject'
LISTS = 'ImageSets'
CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')
MAX_CORNER = 1e9  # in pixels


def find_root(source: Path) -> Path | None:
    """The folder with JPEGImages and annotations or label maps: one itself, or below VOCdevkit; None without."""
    if source.name in XML_FOLDERS:
        source = source.parent
    places = (source, *sorted(source.glob('VOC*')), *sorted(source.glob('VOC*/VOC*')))
    found = [each for each in places if any((each / name).is_dir() for name in IMAGE_FOLDERS) and _is_root(each)]
    if len(found) > 1 and found[0] != source:
        raise InputError(f'{source} has {", ".join(path.name for path in found)}: name one with --data')
    return found[0] if found else None


def _is_root(place: Path) -> bool:
    if (place / CLASS_MAPS).is_dir() and (place / LISTS).is_dir():
        return True
    return any(next((place / name).rglob('*.xml'), None) is not None for name in XML_FOLDERS)


class SplitList(NamedTuple):
    """The file that lists the images of a split, and the names without suffix, with their lines."""

    path: Path
    stems: dict[str, int]

    def absent(self, stem: str, what: Path) -> Problem:
        """The problem that something of an image is not there."""
        return Problem('image missing', str(self.path), f'line {self.stems[stem]}: there is no {what}')


def find_lists(root: Path, kind: str) -> dict[str, SplitList]:
    """The lists of the splits in ImageSets/Main or ImageSets/Segmentation; without train, trainval is that."""
    folder = root / LISTS / kind
    names = [path.stem for path in folder.glob('*.txt') if not is_hidden(Path(path.name))] if folder.is_dir() else []
    lists = {}
    for split, name in by_split(names, folder).items():
        path = folder / f'{name}.txt'
        stems: dict[str, int] = {}
        for number, line in enumerate(read_lines(path, 'names of images, one a line'), 1):
            if stem := line.strip().strip('\'"'):  # some programs quote names that have spaces
                stems.setdefault(stem, number)
        if not stems:
            raise InputError(f'{path} is empty: expected names of images, one a line')
        lists[split] = SplitList(path, stems)
    return lists


def image_folder(root: Path) -> Path:
    """The folder of the images."""
    return next(root / name for name in IMAGE_FOLDERS if (root / name).is_dir())


class Box(NamedTuple):
    """An object in an XML file: its number there from 1, its class, its corners, and whether it is difficult."""

    number: int
    name: str
    corners: tuple[float, float, float, float]
    is_difficult: bool


class Annotated(NamedTuple):
    """What an XML file says: width and height of the image, its name, the objects that can be used, what is wrong."""

    size: tuple[int, int] | None
    file_name: str
    boxes: list[Box]
    faults: list[Problem]


def read_xml(path: Path) -> Annotated:
    """Read an XML file; what cannot be used in it is among the faults."""
    try:
        content = path.read_bytes()
        if declared := re.match(rb'<\?xml[^>]*encoding=["\']([A-Za-z0-9._-]+)["\']', content):
            name = declared[1].decode().lower()
            # Programs name GB2312 and write what has come to it since. Text is parsed whatever its declaration says.
            content = content.decode('gb18030' if name in ('gb2312', 'gbk') else name)
        root = ElementTree.fromstring(content)
        if root.tag != 'annotation':
            raise ValueError(f'<{root.tag}>, expected <annotation>')
    except (ElementTree.ParseError, LookupError, OSError, ValueError) as error:
        return Annotated(None, '', [], [Problem('XML malformed', str(path), str(error))])

    def text(element: ElementTree.Element, place: str) -> str:
        return (element.findtext(place) or '').strip()

    def number(element: ElementTree.Element, place: str) -> float:
        try:
            return float(text(element, place))
        except ValueError:
            return math.nan

    boxes, faults = [], []
    for index, each in enumerate(root.findall('object'), 1):
        name, corners = text(each, 'name'), tuple(number(each, f'bndbox/{corner}') for corner in CORNERS)
        wrong = [corner for corner, value in zip(CORNERS, corners) if not abs(value) < MAX_CORNER]
        if not name or printable(name) != name:
            detail = f'object {index}: its name is {name[:20]!r}'
            faults.append(Problem('object malformed', str(path), detail))
        elif wrong:
            value = text(each, f'bndbox/{wrong[0]}')
            what = f'{wrong[0]} is {value[:20]!r}, expected a number' if value else f'no {wrong[0]}'
            faults.append(Problem('box malformed', str(path), f'object {index}, {name!r}: {what}'))
        else:
            boxes.append(Box(index, name, corners, text(each, 'difficult').lower() in ('1', 'true')))
    size = [number(root, f'size/{name}') for name in ('width', 'height')]
    known = all(1 <= each < math.inf for each in size)  # programs write 0 for a size that they do not know
    return Annotated((int(size[0]), int(size[1])) if known else None, text(root, 'filename'), boxes, faults)
