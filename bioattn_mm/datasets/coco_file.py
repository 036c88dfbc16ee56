"""COCO's format of annotations: its schema, which stands here alone, and files that are read by it.

msgspec reads and checks the 450 MB of COCO's training annotations in about a second, many times quicker than the json
module alone; masks stay text until they are asked for.
"""

import codecs
import json
import locale
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ..errors import InputError
from .checks import MAX_COORDINATE, check_segmentation
from .problem import Problem

Id = int | str
# Text, which can be drawn.
Name = Annotated[str, msgspec.Meta(pattern=r'^(?=.*\S)[^\x00-\x1f\ud800-\udfff]+\Z')]
FileName = Annotated[str, msgspec.Meta(pattern=r'^[^\x00]+\Z')]
# A side is limited in pixels, because pycocotools allocates masks of the size of an image.
Length = Annotated[int, msgspec.Meta(ge=1, le=10**6)]
# The bounds also refuse NaN and infinity.
Number = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
Area = Annotated[float, msgspec.Meta(ge=-1e24, le=1e24)]  # of any box, where a file has none
Flag = Literal[0, 1] | bool


class ImageEntry(msgspec.Struct, gc=False):
    """An image: its id, its file below the folder of images, and its size in pixels."""

    id: Id
    file_name: FileName
    width: Length
    height: Length


class Annotation(msgspec.Struct, gc=False, omit_defaults=True):
    """An object: x, y, width and height of its box in pixels, and what a file may lack or leave null.

    `segmentation` is the text of its mask, polygons or run lengths (see `mask_of`). `source` is where it stands if
    another format was read: a file and a line.
    """

    image_id: Id
    category_id: Id
    bbox: tuple[Number, Number, Number, Number]
    id: Id | None = None
    area: Area | None = None
    iscrowd: Flag | None = None
    ignore: Flag | None = None
    segmentation: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    source: str | None = msgspec.field(default=None, name='bioattn_mm_source')  # no name of other programs

    @property
    def has_mask(self) -> bool:
        """Whether the file has a mask, which may be null."""
        return self.segmentation is not msgspec.UNSET

    def __str__(self) -> str:
        if self.source is not None:
            return self.source
        return f'an annotation of image {self.image_id}' if self.id is None else f'annotation {self.id}'


class Category(msgspec.Struct, omit_defaults=True):
    """A class; in some files also the group of several, which they name as their supercategory."""

    id: Id
    name: Name
    supercategory: str | int | None = None


class Document(msgspec.Struct):
    """A file."""

    images: list[ImageEntry]
    annotations: list[Annotation]
    categories: list[Category]


# Kind of problem: labels have other names than the config says, but the same ones in every file of that order.
OTHER_ORDER = 'categories in another order'
# What the entries of each list are, and what one is called.
ENTRIES = dict(
    images=(ImageEntry, 'image'), annotations=(Annotation, 'annotation'), categories=(Category, 'category')
)
EXACT = 2**53  # from here on, floating point leaves out whole numbers
# The fields of entries that hold whole numbers.
WHOLE = ('id', 'image_id', 'category_id', 'width', 'height', 'iscrowd', 'ignore')
_decoder = msgspec.json.Decoder(Document)
Coordinate = Annotated[float, msgspec.Meta(gt=-MAX_COORDINATE, lt=MAX_COORDINATE)]
_polygon_decoder = msgspec.json.Decoder(list[list[Coordinate]])


# The files that copies were made of, by path.
_originals: dict[str, str] = {}


@dataclass
class CocoFile:
    """What a file holds.

    Attributes:
        path: The file, of a copy the one that it was made of.
        images: Its images.
        annotations: Its annotations.
        categories: Its categories.
        faults: The entries that are against the schema, which the lists do not have.
        is_plain: Whether pycocotools reads the file as it is: it opens it in the encoding of the locale.
        changes: What was read otherwise than it is written, one line each.
    """

    path: str
    images: list[ImageEntry]
    annotations: list[Annotation]
    categories: list[Category]
    faults: list[Problem] = field(default_factory=list)
    is_plain: bool = True
    changes: list[str] = field(default_factory=list)

    def refuse_faults(self) -> None:
        """Raise an `InputError` that names the first entry against the schema."""
        if self.faults:
            more = f' (and {len(self.faults) - 1} more)' if len(self.faults) > 1 else ''
            raise InputError(f'{self.faults[0]}{more}: repair it; tools/inspect_data.py lists all')

    def write(self, path: Path) -> None:
        """Write a copy as pycocotools reads it everywhere, in ASCII, without what the schema does not have.

        Read again in this process, it has the name of the file that it was made of.
        """
        path.write_bytes(self._text())
        _originals[str(path)] = self.path

    def _text(self) -> bytes:
        document = Document(self.images, self.annotations, self.categories)
        try:
            content = msgspec.json.encode(document)
        except UnicodeEncodeError:  # of file names that are not in UTF-8
            content = b'\xff'
        return content if content.isascii() else json.dumps(document, default=_plain).encode()


def read_coco_file(path: str | Path, content: bytes | None = None) -> CocoFile:
    """Read a file of annotations.

    Args:
        path: The file.
        content: Its content, if it was read.

    Raises:
        InputError: It is no JSON, or has no lists of images, annotations and categories.
    """
    content = Path(path).read_bytes() if content is None else content
    path = _originals.get(str(path), str(path))
    try:
        if not content.isascii():
            content.decode()  # as msgspec does not look into what it skips
        document = _decoder.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _read_each_entry(path, content)
    is_plain = content.isascii() or _locale_is_utf8()
    return CocoFile(path, document.images, document.annotations, document.categories, is_plain=is_plain)


def _read_each_entry(path: str, content: bytes) -> CocoFile:
    """Read a file that is no JSON as msgspec wants it, which may be Python's, or is against the schema."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f'{path} is no JSON file: {error}') from error
    absent = [key for key in ENTRIES if not (isinstance(document, dict) and isinstance(document.get(key), list))]
    if absent:
        raise InputError(f"{path} is not in COCO's format: it has no list of {' and no list of '.join(absent)}")
    is_plain = content.isascii() or (json.detect_encoding(content) == 'utf-8' and _locale_is_utf8())
    found = CocoFile(path, [], [], [], is_plain=is_plain)
    num_floats = 0
    for key, (kind, what) in ENTRIES.items():
        for index, entry in enumerate(document[key]):
            wholes = _wholes(entry)
            num_floats += bool(wholes)
            try:
                getattr(found, key).append(
                    msgspec.convert(_with_text({**entry, **wholes} if wholes else entry), kind)
                )
            except (
                msgspec.ValidationError,
                UnicodeError,
            ) as error:  # of text that is no Unicode, where no text may be
                found.faults.append(_fault(path, f'{key}[{index}]', what, entry, str(error)))
    if num_floats:
        found.changes.append(f'{num_floats} entries have ids or sizes such as 1.0, which are read as whole numbers')
    return found


def _wholes(entry: object) -> dict[str, int]:
    """The ids and sizes of an entry that are whole numbers and written as floating point, as pandas writes them."""
    if not isinstance(entry, dict):
        return {}
    values = ((key, entry.get(key)) for key in WHOLE)
    return {
        key: int(value)
        for key, value in values
        if isinstance(value, float) and value.is_integer() and abs(value) < EXACT
    }


def _with_text(entry: object) -> object:
    """An entry whose mask is text, as msgspec leaves it."""
    if not isinstance(entry, dict) or 'segmentation' not in entry:
        return entry
    return {**entry, 'segmentation': msgspec.Raw(json.dumps(entry['segmentation']).encode())}


def _fault(path: str, place: str, what: str, entry: object, error: str) -> Problem:
    """What msgspec found wrong with an entry, with the value in question."""
    entry_id = entry.get('id') if isinstance(entry, dict) else None
    name = f'{what} {entry_id}' if type(entry_id) in (int, str) else place
    missing = re.fullmatch(r'Object missing required field `(\w+)`', error)
    if missing:
        return Problem(f'{what} incomplete', path, f'{name}: no {missing[1]}: {json.dumps(entry)[:100]}')
    at = re.search(r' - at `\$\.(\w+).*`$', error)
    if at is None:
        return Problem(f'{what} malformed', path, f'{name}: {json.dumps(entry)[:100]}: {error}')
    value = f'{name}: {at[1]} {json.dumps(entry[at[1]])[:60]}'
    if at[1] == 'bbox':
        return Problem('box malformed', path, f'{value}, expected [x, y, width, height] as numbers')
    return Problem(f'{what} malformed', path, f'{value}: {error[: at.start()].lower()}')


def _plain(value: object) -> object:
    """What json can write of an entry."""
    if isinstance(value, msgspec.Raw):
        return json.loads(bytes(value))
    names = zip(value.__struct_encode_fields__, value.__struct_fields__)
    entries = ((name, getattr(value, field)) for name, field in names)
    return {name: entry for name, entry in entries if entry is not None and entry is not msgspec.UNSET}


def _locale_is_utf8() -> bool:
    return codecs.lookup(locale.getpreferredencoding(False)).name == 'utf-8'


def write_loadable(path: str, copy: Path, most: int) -> None:
    """Write a copy of a file without what keeps mmdet from loading it.

    Args:
        path: The file.
        copy: The copy.
        most: Of an image with more annotations so many are in the copy, spread over all.
    """
    content = read_coco_file(path)
    totals, seen, kept = Counter(each.image_id for each in content.annotations), Counter(), []
    for each in content.annotations:
        total, number = totals[each.image_id], seen[each.image_id]
        seen[each.image_id] += 1
        if total <= most or (number + 1) * most // total > number * most // total:
            each.id = len(kept) + 1
            each.area = each.bbox[2] * each.bbox[3] if each.area is None else each.area
            kept.append(each)
    content.annotations = kept
    content.write(copy)


def file_problems(content: CocoFile, classes: Sequence[str]) -> list[Problem]:
    """What is wrong with ids and names, and would make mmdet replace or renumber data in silence."""
    images, annotations, categories = content.images, content.annotations, content.categories
    named = {
        'image id twice': (entry.id for entry in images),
        'image file twice': (entry.file_name for entry in images),
        'annotation id twice': (entry.id for entry in annotations if entry.id is not None),
        'category id twice': (entry.id for entry in categories),
        'category name twice': (entry.name for entry in categories),
    }
    found = []
    for kind, values in named.items():
        twice = ((value, count) for value, count in Counter(values).items() if count > 1)
        found += [(kind, f'{value!r} stands {count} times') for value, count in twice]
    for kind, entries in {'image ids': images, 'category ids': categories}.items():
        if len({type(entry.id) for entry in entries}) > 1:
            found.append((f'{kind} of two types', 'some are numbers, others strings'))
    odd = [entry for entry in annotations if not isinstance(entry.id, int)]
    if odd:
        detail = f'{len(odd)} of {len(annotations)}, such as {odd[0]}'
        found.append(('annotations without a number as id', detail))
    names = [entry.name for entry in categories]
    found += [
        ('class without category', f'{name!r}: mmdet shifts the labels of those after it')
        for name in classes
        if name not in names
    ]
    used = [name for name in names if name in classes]
    if used != [name for name in classes if name in names]:
        found.append((OTHER_ORDER, f'{", ".join(used[:5])}: mmdet numbers them so, whatever the classes'))
    return [Problem(kind, content.path, detail) for kind, detail in found]


def labels_of(content: CocoFile, classes: Sequence[str]) -> dict[Id, int]:
    """The class of each category id; -1 for the categories that are none."""
    labels = {name: label for label, name in enumerate(classes)}
    label_of: dict[Id, int] = {}
    for entry in content.categories:
        label_of.setdefault(entry.id, labels.get(entry.name, -1))
    return label_of


def mask_of(annotation: Annotation) -> object:
    """The segmentation of an annotation: polygons, run lengths, or what else the file has; None without one."""
    if annotation.segmentation is msgspec.UNSET:
        return None
    text = bytes(annotation.segmentation)
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:  # of NaN
        return json.loads(text)


def polygons_of(annotation: Annotation) -> list[list[float]]:
    """The polygons of a mask that `check_segmentation` takes, which is asked quicker here; none of another mask."""
    if annotation.segmentation is msgspec.UNSET:
        return []
    try:
        polygons = _polygon_decoder.decode(annotation.segmentation)
    except msgspec.DecodeError:
        return []
    return [polygon for polygon in polygons if len(polygon) >= 6 and len(polygon) % 2 == 0]


def reason_left_out(annotation: Annotation, image: ImageEntry) -> str | None:
    """Why mmdet's `CocoDataset` takes no account of an annotation; None if it does."""
    x, y, width, height = annotation.bbox
    if annotation.ignore:
        return 'are to be ignored'
    if min(x + width, image.width) <= max(x, 0) or min(y + height, image.height) <= max(y, 0):
        return 'have a box without area or outside of the image'
    if width < 1 or height < 1:
        return 'have a box of less than a pixel'
    return 'have no area' if annotation.area is not None and annotation.area <= 0 else None


def mask_problem(annotation: Annotation, image: ImageEntry) -> tuple[str, str] | None:
    """What is wrong with the mask of an annotation: kind and detail."""
    if polygons_of(annotation):
        return None
    segmentation, size = mask_of(annotation), [image.height, image.width]
    if isinstance(segmentation, dict) and segmentation.get('size') not in (None, size):
        return 'mask of another size', f'run lengths for {segmentation["size"]}, the image is {size}'
    try:
        check_segmentation(segmentation, (image.height, image.width))
    except ValueError as error:
        return 'mask malformed', str(error)
    return None
