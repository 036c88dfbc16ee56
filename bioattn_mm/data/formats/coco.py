"""COCO's format of annotations, which those of all formats become: schema, files, and what is wrong with them.

msgspec reads and checks the 450 MB of COCO's training annotations in about a second, many times quicker than the json
module alone; masks stay text until they are asked for.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from PIL import UnidentifiedImageError

from ...errors import InputError, first_line
from ...runtime.images import read_header
from ...runtime.paths import is_hidden
from ..checks import MAX_COORDINATE, Problem, check_segmentation
from ..image_files import MOSTLY, read_size, spread
from . import folders

# Other files that the real COCO has beside its instances.
OTHER_COCO_FILES = ('captions', 'person_keypoints', 'panoptic', 'stuff', 'image_info')
PATTERNS = ('*.json', 'annotations/*.json', '*/*.json', '*/annotations/*.json')
NUM_SAID = 3  # the most JSON files that a message explains
Id = int | str
# The name of a class is text that can be drawn.
NAME = r'^(?=.*\S)[^\x00-\x1f\ud800-\udfff]+\Z'
Name = Annotated[str, msgspec.Meta(pattern=NAME)]
FileName = Annotated[str, msgspec.Meta(pattern=r'^[^\x00]+\Z')]
# A side is limited in pixels, because pycocotools allocates masks of the size of an image.
Length = Annotated[int, msgspec.Meta(ge=1, le=10**6)]
# The bounds also refuse NaN and infinity.
Number = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
Area = Annotated[float, msgspec.Meta(ge=-1e24, le=1e24)]  # a box of the largest numbers has this area
Flag = Literal[0, 1] | bool


class ImageEntry(msgspec.Struct, gc=False):
    """An image: its id, its file below the folder of images, and its size in pixels."""

    id: Id
    file_name: FileName
    width: Length
    height: Length


class Annotation(msgspec.Struct, gc=False, omit_defaults=True):
    """An object: x, y, width and height of its box in pixels, and what a file may lack or leave null.

    `segmentation` is the text of its mask (see `mask_of`). `source` is its file and line if another format was read.
    """

    image_id: Id
    category_id: Id
    bbox: tuple[Number, Number, Number, Number]
    id: Id | None = None
    area: Area | None = None
    iscrowd: Flag | None = None
    ignore: Flag | None = None
    segmentation: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    source: str | None = msgspec.field(default=None, name='bioattn_mm_source')  # no other program uses this name

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


# Each list of a file has entries of this class, and messages call one so.
ENTRIES = dict(
    images=(ImageEntry, 'image'), annotations=(Annotation, 'annotation'), categories=(Category, 'category')
)
# The fields of entries that hold whole numbers, which some programs write as 1.0.
WHOLE = ('id', 'image_id', 'category_id', 'width', 'height', 'iscrowd', 'ignore')
EXACT = 2**53  # from here on, floating point leaves out whole numbers
# Kind of problem: labels have other names than the config says, but the same ones in every file of that order.
OTHER_ORDER = 'categories in another order'
# Pixels by which a box may reach over the border of its image, and a polygon over that of its box: programs round.
TOLERANCE = 1.0
MASK_TOLERANCE = 2.0
# Boxes without polygons or areas are taken for corners if `ALL` of them fit so, and `SOME` do not fit as they are.
ALL, SOME = 0.95, 0.2
# Fewer objects say nothing about all, and more need not be looked at.
LEAST, MOST = 4, 20_000
Coordinate = Annotated[float, msgspec.Meta(gt=-MAX_COORDINATE, lt=MAX_COORDINATE)]
_polygon_decoder = msgspec.json.Decoder(list[list[Coordinate]])
_decoder = msgspec.json.Decoder(Document)
# The files that copies were made of, by path.
_originals: dict[str, str] = {}


@dataclass
class CocoFile:
    """Images and objects, of a file in COCO's format or of another format."""

    path: str  # the file or folder that messages name; of a copy, the file that it was made of
    images: list[ImageEntry]
    annotations: list[Annotation]
    categories: list[Category]
    faults: list[Problem] = field(default_factory=list)  # entries that cannot be used; the lists do not have them
    is_utf8: bool = True  # mmdet can read the file as it is
    changes: list[str] = field(default_factory=list)  # what was read otherwise than it is written, or was added
    folder: Path | None = None  # the folder of the images; None: it is to be looked for
    # These entries are left out and are not wrong, such as a label file without image.
    left_out: list[Problem] = field(default_factory=list)

    def refuse_faults(self) -> None:
        """Raise an `InputError` that names the first entry against the schema."""
        if self.faults:
            more = f' (and {len(self.faults) - 1} more)' if len(self.faults) > 1 else ''
            raise InputError(f'{self.faults[0]}{more}: repair it; tools/inspect_data.py lists all')

    def write(self, path: Path) -> None:
        """Write a copy in UTF-8, without what the schema does not have; read again, it has the original's name."""
        document = Document(self.images, self.annotations, self.categories)
        try:
            content = msgspec.json.encode(document)
        except UnicodeEncodeError:  # JSON can escape file names that are not in UTF-8
            plain = msgspec.to_builtins(document, enc_hook=lambda mask: json.loads(bytes(mask)))
            content = json.dumps(plain).encode()
        path.write_bytes(content)
        _originals[str(path)] = self.path


@dataclass(frozen=True)
class Source:
    """The annotations of a split in any format, which are read later."""

    path: Path  # the file or folder that messages name
    places: tuple[Path, ...]  # where its images are listed, which tells whether two splits are the same
    read: Callable[
        [tuple[str, ...] | None], CocoFile
    ]  # its argument: the classes, if other data have decided on them


def find_coco_files(source: Path, unused: list[str]) -> dict[str, Path]:
    """The file of COCO's format of each split; `unused` gets what is to be said of the other JSON files."""
    if source.is_file():
        return {'train': source}
    paths = dict.fromkeys(path for pattern in PATTERNS for path in sorted(source.glob(pattern)))
    paths = [path for path in paths if not is_hidden(path.relative_to(source))]  # Jupyter hides copies
    # A link leads nowhere after data were moved.
    reasons = [f'{path} is a link to {path.readlink()}, which is not there' for path in paths if not path.exists()]
    candidates: dict[str, list[Path]] = {}
    for path in filter(Path.is_file, paths):
        candidates.setdefault(folders.split_of(path.relative_to(source)), []).append(path)
    found: dict[str, Path] = {}
    for split, files in candidates.items():
        # The real COCO has other files beside its instances, all of them large.
        files = [path for path in files if path.name.startswith('instances')] or files
        # A file that is the only one of its split is read later, and only once.
        if not split or len(files) > 1 or files[0].name.startswith(OTHER_COCO_FILES):
            why = {path: reason_not_used(path) for path in files}
            reasons += filter(None, why.values())
            files = [path for path in files if not why[path]]
        if len(files) > 1:
            names = ', '.join(str(path.relative_to(source)) for path in files[:3])
            raise InputError(
                f'{source} has {len(files)} files of annotations for {split or "training"}: {names}; name one '
                'with --train-data or --val-data'
            )
        found.update((split, path) for path in files)
    if not found:
        looked = '; '.join(reasons[:NUM_SAID]) or f'looked for {", ".join(PATTERNS)}'
        raise InputError(
            f"no annotations in COCO's format in {source}: {looked}; expected JSON with images, annotations and "
            'categories, see docs/own_data.md (Datumaro converts other formats)'
        )
    unused += [f'not used: {reason}' for reason in reasons[:NUM_SAID]]
    if '' in found and 'train' in found:
        unused.append(f'not used: {found[""]}, as {found["train"]} is named as the training data')
    elif '' in found:
        found['train'] = found['']
    return {split: found[split] for split in folders.SPLITS if split in found}


def reason_not_used(path: Path) -> str | None:
    """Why a file has no objects in COCO's format; None if it has."""
    try:
        content = read_coco_file(path)
    except InputError as error:
        return str(error)
    if path.name.startswith(OTHER_COCO_FILES) and (content.faults or not content.annotations):
        return f'{path} has no boxes of objects'
    return None


def read_coco_file(path: str | Path, content: bytes | None = None) -> CocoFile:
    """Read a file of annotations, or its content if it was read."""
    content = Path(path).read_bytes() if content is None else content
    path = _originals.get(str(path), str(path))
    try:
        if not content.isascii():
            content.decode()  # msgspec does not look into what it skips
        document = _decoder.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _read_each_entry(path, content)
    return CocoFile(path, document.images, document.annotations, document.categories)


def _read_each_entry(path: str, content: bytes) -> CocoFile:
    """Read a file that is no JSON as msgspec wants it, which may be Python's, or is against the schema."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f'{path} is no JSON file: {error}') from error
    absent = [key for key in ENTRIES if not (isinstance(document, dict) and isinstance(document.get(key), list))]
    if absent:
        raise InputError(f"{path} is not in COCO's format: it has no list of {' and no list of '.join(absent)}")
    found = CocoFile(path, [], [], [], is_utf8=json.detect_encoding(content) == 'utf-8')
    num_floats = 0
    for key, (kind, what) in ENTRIES.items():
        for index, entry in enumerate(document[key]):
            read = entry
            if isinstance(entry, dict):
                wholes = {
                    name: int(value)
                    for name in WHOLE
                    if isinstance(value := entry.get(name), float) and value.is_integer() and abs(value) < EXACT
                }
                num_floats += bool(wholes)
                read = {**entry, **wholes}
                if 'segmentation' in entry:  # a mask stays text, as msgspec leaves it
                    read['segmentation'] = msgspec.Raw(json.dumps(entry['segmentation']).encode())
            try:
                getattr(found, key).append(msgspec.convert(read, kind))
            except (msgspec.ValidationError, UnicodeError) as error:  # `UnicodeError`: text that is no Unicode
                found.faults.append(_fault(path, f'{key}[{index}]', what, entry, str(error)))
    if num_floats:
        found.changes.append(f'{num_floats} entries have ids or sizes such as 1.0, which are read as whole numbers')
    return found


def _fault(path: str, place: str, what: str, entry: object, error: str) -> Problem:
    """What msgspec found wrong with an entry, with the value in question."""
    entry_id = entry.get('id') if isinstance(entry, dict) else None
    name = f'{what} {entry_id}' if type(entry_id) in (int, str) else place
    if missing := re.fullmatch(r'Object missing required field `(\w+)`', error):
        return Problem(f'{what} incomplete', path, f'{name}: no {missing[1]}: {json.dumps(entry)[:100]}')
    at = re.search(r' - at `\$\.(\w+).*`$', error)
    if at is None:
        return Problem(f'{what} malformed', path, f'{name}: {json.dumps(entry)[:100]}: {error}')
    value = f'{name}: {at[1]} {json.dumps(entry[at[1]])[:60]}'
    if at[1] == 'bbox':
        return Problem('box malformed', path, f'{value}, expected [x, y, width, height] as numbers')
    return Problem(f'{what} malformed', path, f'{value}: {error[: at.start()].lower()}')


def mask_of(annotation: Annotation) -> object:
    """The segmentation of an annotation: polygons, run lengths, or what else the file has; None without one."""
    if annotation.segmentation is msgspec.UNSET:
        return None
    return json.loads(bytes(annotation.segmentation))


def image_entry(number: int, image: Path, folder: Path, size: tuple[int, int] | None = None) -> ImageEntry | Problem:
    """An image in COCO's format, named as seen from a folder, or why it cannot be used.

    Its width and height are read from its header unless a file says them.
    """
    try:
        try:
            size = size or read_size(image)
        except UnidentifiedImageError:  # an array, or a TIFF file of more channels than Pillow knows
            size = read_header(image).size
        width, height = msgspec.convert(size, tuple[Length, Length])
    except Exception as error:  # damaged images raise errors of many kinds
        return Problem('image unreadable', str(image), first_line(error))
    return ImageEntry(number, image.relative_to(folder).as_posix(), width, height)


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
    found = [
        (kind, f'{value!r} stands {count} times')
        for kind, values in named.items()
        for value, count in Counter(values).items()
        if count > 1
    ]
    for kind, entries in {'image ids': images, 'category ids': categories}.items():
        if len({type(entry.id) for entry in entries}) > 1:
            found.append((f'{kind} of two types', 'some are numbers, others strings'))
    if odd := [entry for entry in annotations if not isinstance(entry.id, int)]:
        found.append(('annotations without a number as id', f'{len(odd)} of {len(annotations)}, such as {odd[0]}'))
    names = [entry.name for entry in categories]
    for name in classes:
        if name not in names:
            found.append(('class without category', f'{name!r}: mmdet shifts the labels of those after it'))
    used = [name for name in names if name in classes]
    if used != [name for name in classes if name in names]:
        found.append((OTHER_ORDER, f'{", ".join(used[:5])}: mmdet numbers them so, whatever the classes'))
    return [Problem(kind, content.path, detail) for kind, detail in found]


def objects_of(
    content: CocoFile, classes: Sequence[str]
) -> Iterator[tuple[Annotation, ImageEntry | None, int | None, bool]]:
    """Each annotation of a file, its image, its class, and whether one before it has the same of both, box and mask.

    The image or the class is None if the file does not have it; the class is -1 for categories that are no classes.
    """
    label_of = {name: label for label, name in enumerate(classes)}
    # Annotations belong to the first of several images, or categories, of one id.
    images = {entry.id: entry for entry in reversed(content.images)}
    labels = {entry.id: label_of.get(entry.name, -1) for entry in reversed(content.categories)}
    seen = set()
    for item in content.annotations:
        mask = b'' if item.segmentation is msgspec.UNSET else bytes(item.segmentation)
        key = hash((item.image_id, item.category_id, item.bbox, item.iscrowd, mask))
        yield item, images.get(item.image_id), labels.get(item.category_id), key in seen
        seen.add(key)


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


def object_problem(item: Annotation, image: ImageEntry, with_mask: bool, is_repeated: bool) -> tuple[str, str] | None:
    """What is wrong with an object: kind and detail; mmdet leaves out boxes of less than a pixel, too."""
    x, y, width, height = item.bbox
    text = f'bbox [{", ".join(f"{value:g}" for value in item.bbox)}]'
    if width < 1 or height < 1:
        return 'box without area', text
    over = max(-x, -y, x + width - image.width, y + height - image.height)
    if over > TOLERANCE:
        border = f'{image.width} x {image.height}'
        return 'box outside the image', f'{text} reaches {over:.4g} pixels over the border of {border}'
    if item.area is None or item.area <= 0:
        return 'annotation without area', f'area {item.area!r}'
    if with_mask and (problem := mask_problem(item, image)):
        return problem
    if not item.iscrowd and (extent := extent_of(item)):
        over = max(x - extent[0], y - extent[1], extent[2] - x - width, extent[3] - y - height)
        if over > MASK_TOLERANCE:
            return 'mask outside its box', f'a polygon reaches {over:.4g} pixels over the border of {text}'
    return ('annotation twice', 'the same image, class, box and mask as one before') if is_repeated else None


def extent_of(item: Annotation) -> tuple[float, float, float, float] | None:
    """Least x and y and largest x and y of the polygons of an object in pixels; None without polygons."""
    if not (polygons := polygons_of(item)):
        return None
    xs, ys = ([value for polygon in polygons for value in polygon[first::2]] for first in (0, 1))
    return min(xs), min(ys), max(xs), max(ys)


def likeness(content: CocoFile) -> list[str]:
    """What most boxes or polygons of a file look like if they are wrong, and what to do: one line or none."""
    images = {entry.id: entry for entry in content.images}
    items = [item for item in content.annotations if item.image_id in images and not item.iscrowd]
    items = [items[index] for index in spread(len(items), MOST)]
    if len(items) < LEAST:
        return []
    # (N, 2), (N, 4), (N,) and (N, 4), with NaN where there is no area or polygon.
    sizes = np.array([(images[item.image_id].width, images[item.image_id].height) for item in items], float)
    boxes = np.array([item.bbox for item in items], float)
    areas = np.array([np.nan if item.area is None else item.area for item in items], float)
    extents = np.array([extent_of(item) or (np.nan,) * 4 for item in items], float)
    with_mask, inside = ~np.isnan(extents[:, 0]), _fits(boxes, sizes)
    wrong_mask = with_mask & ~_matches(boxes, extents)

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
        better = ~inside | (wrong_mask & (name != 'y, x, height, width'))
        if name.startswith('corners'):
            of_area = [np.isclose(areas, each[:, 2] * each[:, 3], rtol=0.01) for each in (read, boxes)]
            better |= of_area[0] & ~of_area[1]
            if fits.mean() >= ALL and (~inside).mean() >= SOME:
                better[:] = True
        number = int((fits & better).sum())
        if number >= MOSTLY * len(boxes):
            return [
                f'boxes look like {name} ({number} of {len(boxes)} objects): write them in the format that the file '
                "is in, such as x, y, width, height in pixels in COCO's"
            ]
    if not with_mask.any() or wrong_mask.sum() < MOSTLY * with_mask.sum():
        return []
    scale = np.nanmedian((boxes[:, :2] + boxes[:, 2:]) / np.maximum(extents[:, 2:], 1e-9))
    readings = {
        'polygons look as if x and y were exchanged': extents[:, (1, 0, 3, 2)],
        'polygons look like shares of the width and height of the image': extents * np.tile(sizes, 2),
        f'polygons look as if they were of an image {1 / scale:.3g} times as large': extents * scale,
    }
    for name, reading in readings.items():
        number = int((wrong_mask & _matches(boxes, reading)).sum())
        if number >= MOSTLY * with_mask.sum():
            return [f'{name} ({number} of {int(with_mask.sum())} objects): write them as their boxes are, in pixels']
    return []


def _fits(boxes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Whether boxes x, y, width, height have an area and are in their images."""
    low, high = boxes[:, :2], boxes[:, :2] + boxes[:, 2:]
    return (boxes[:, 2:] >= 1).all(1) & (low >= -TOLERANCE).all(1) & (high <= sizes + TOLERANCE).all(1)


def _matches(boxes: np.ndarray, extents: np.ndarray) -> np.ndarray:
    """Whether boxes x, y, width, height are those of their polygons."""
    corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    return (np.abs(corners - extents) <= MASK_TOLERANCE).all(1)
