"""Reading own data of detectors in Pascal VOC's format: an XML file for each image, and label maps of objects.

VOC counts pixels from 1, and the last one of a box is in it: a box of all the image has the corners 1, 1, width and
height.
"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from PIL import Image
from pycocotools import mask as coco_mask

from ...datasets.coco_file import Annotation, Category, CocoFile
from ...datasets.problem import Problem
from ...errors import InputError
from ...runtime.inputs import images_below
from ...runtime.voc import BORDER, voc_palette
from .class_files import classes_named_in, is_background
from .folders import by_split, split_of_name, subfolders
from .sources import Content, Source, image_entry
from .voc_layout import LISTS, OBJECT_MAPS, XML_FOLDERS, SplitList, by_stem, find_lists, find_root, image_folder
from .voc_xml import Annotated, Box, read_xml

WITHOUT_MAP = 'image without label map'


@dataclass(frozen=True)
class Folder:
    """Where a folder in VOC's format has what.

    Attributes:
        root: The folder.
        xmls: That of the XML files.
        images: That of the images.
        maps: That of the label maps of objects, for a model of masks.
        read: Reads an XML file, once.
    """

    root: Path
    xmls: Path
    images: Path
    maps: Path | None
    read: Callable[[Path], Annotated]

    def classes(self) -> tuple[str, ...]:
        """The classes that a file in the folder names, without the background, else those of all objects."""
        named = classes_named_in(self.root)
        if named is not None:
            return tuple(name for name in named if not is_background(name))
        paths = sorted(self.xmls.rglob('*.xml'))
        names = {box.name for path in paths for box in self.read(path).boxes if box is not None}
        if not names:
            faults = [fault for path in paths for fault in self.read(path).faults]
            raise InputError(
                f'{self.xmls} has {len(paths)} XML files, none of which has an object that can be used'
                + ''.join(f', such as {fault}' for fault in faults[:1])
            )
        return tuple(sorted(names))

    def stem(self, path: Path) -> str:
        """The name of an XML file, without suffix, as lists have it."""
        return path.relative_to(self.xmls).with_suffix('').as_posix()

    def source(self, listed: SplitList | None = None) -> Source:
        """The source of the images of a list, or of all that have an XML file."""
        place = listed.path if listed else self.xmls
        return Source(self.xmls, (place,), functools.partial(_read, self, listed))


def find_voc(source: Path, with_mask: bool) -> dict[str, Source]:
    """The splits of a folder in VOC's format; none if it is in another format.

    Args:
        source: A folder with JPEGImages and Annotations, or VOCdevkit above it, or Annotations itself; or one of XML
            files beside the images, maybe by split.
        with_mask: Whether the model learns masks: then the images are those of ImageSets/Segmentation, if there are.

    Raises:
        InputError: There are several.
    """
    if not source.is_dir():
        return {}
    read = functools.cache(read_xml)
    root = find_root(source)
    xmls = next((root / name for name in XML_FOLDERS if (root / name).is_dir()), None) if root else None
    if xmls is not None:
        maps = root / OBJECT_MAPS if with_mask and (root / OBJECT_MAPS).is_dir() else None
        folder = Folder(root, xmls, image_folder(root), maps, read)
        lists = (maps and find_lists(root, 'Segmentation')) or find_lists(root, 'Main')
        # VOC's own test images have no annotations.
        found = {
            split: folder.source(each)
            for split, each in lists.items()
            if split != 'test' or any((xmls / f'{stem}.xml').is_file() for stem in each.stems)
        }
        return found or dict(train=folder.source())
    names = [name for name in subfolders(source) if _has_xml(source / name)]
    places = {split: source / name for split, name in by_split(names, source).items()}
    if 'train' not in places and _has_xml(source):
        places['train'] = source
    return {split: Folder(place, place, place, None, read).source() for split, place in places.items()}


def _has_xml(folder: Path) -> bool:
    """Whether there are XML files of VOC's format beside images."""
    path = next(folder.glob('*.xml'), None) if folder.is_dir() else None
    if path is None or not re.search(rb'<annotation[\s>]', path.read_bytes()[:1000]):  # CVAT's own has <annotations>
        return False
    return bool(images_below(folder, required=False))


def _read(folder: Folder, listed: SplitList | None, classes: tuple[str, ...] | None) -> Content:
    """Read the images of a list, or all that have an XML file; the classes are the folder's if none are given."""
    classes = classes or folder.classes()
    file = CocoFile(str(folder.xmls), [], [], [Category(index + 1, name) for index, name in enumerate(classes)])
    content = Content(file, folder.images)
    images = by_stem(folder.images)
    stems = listed.stems if listed else sorted(map(folder.stem, folder.xmls.rglob('*.xml')))
    if listed is None:
        others = [path for path in sorted((folder.root / LISTS).glob('*/*.txt')) if not split_of_name(path.stem)]
        if others:
            content.notes.append(f'not used: {others[0]}, as its name says no split (train, val or test)')
        alone = sorted(set(images) - set(stems))
        content.left_out += [Problem('image without XML', str(images[stem])) for stem in alone]
    for stem in stems:
        path = folder.xmls / f'{stem}.xml'
        if not path.is_file():
            file.faults.append(listed.absent(stem, path))
            continue
        annotated = folder.read(path)
        image = images.get(stem, folder.images / Path(annotated.file_name).name)
        objects = _read_objects(folder.maps / f'{stem}.png') if folder.maps else None
        if not image.is_file() and listed:
            file.faults.append(listed.absent(stem, folder.images / f'{stem}.jpg'))
        elif not image.is_file():
            content.left_out.append(Problem('XML without image', str(path)))
        elif isinstance(objects, Problem) and objects.kind == WITHOUT_MAP:
            content.left_out.append(objects)
        else:
            file.faults += annotated.faults
            entry = image_entry(len(file.images) + 1, image, folder.images, annotated.size)
            wrong = [each for each in (entry, objects) if isinstance(each, Problem)]
            file.faults += wrong
            if not wrong:
                file.images.append(entry)
                _add_objects(content, path, annotated.boxes, classes, objects)
    if stems and not file.images and not file.faults:
        and_map = f' and a label map in {folder.maps}' if folder.maps else ''
        raise InputError(f'no XML file of {folder.xmls} has an image in {folder.images}{and_map}')
    num_difficult = sum(each.iscrowd for each in file.annotations)
    if num_difficult:
        content.notes.append(
            f'{num_difficult} of {len(file.annotations)} objects are difficult: they count neither as found nor as '
            'missed (iscrowd)'
        )
    return content


def _add_objects(
    content: Content, path: Path, boxes: list[Box | None], classes: tuple[str, ...], objects: np.ndarray | None
) -> None:
    """Add the objects of an XML file, those of the last image, with their masks if there is a label map of them."""
    file, image = content.file, content.file.images[-1]
    if objects is not None and objects.shape != (image.height, image.width):
        size = f'{objects.shape[1]} x {objects.shape[0]}, the image is {image.width} x {image.height}'
        file.faults.append(Problem('label map of another size', str(path), f'its label map is {size}'))
        return
    for number, box in enumerate(boxes, 1):
        if box is None:
            continue
        if box.name not in classes:
            known = ', '.join(classes[:10]) + ', ...' * (len(classes) > 10)
            detail = f'line {box.line}: {box.name!r} is no class, expected {known}'
            file.faults.append(Problem('class unknown', str(path), detail))
            continue
        left, top = (max(corner - 1, 0) for corner in box.corners[:2])
        width, height = box.corners[2] - left, box.corners[3] - top
        entry = Annotation(
            image.id,
            classes.index(box.name) + 1,
            (left, top, width, height),
            len(file.annotations) + 1,
            area=max(width * height, 0),
            iscrowd=int(box.is_difficult),
            source=f'{path}, line {box.line}',
        )
        if objects is not None:
            mask = objects == number
            if number >= BORDER or not mask.any():
                detail = f'line {box.line}: its label map has no pixel of the value {number}'
                content.left_out.append(Problem('object without pixels', str(path), detail))
                continue
            runs = coco_mask.encode(np.asfortranarray(mask, np.uint8))
            segmentation = dict(size=list(mask.shape), counts=runs['counts'].decode())
            entry.area, entry.segmentation = int(mask.sum()), msgspec.Raw(msgspec.json.encode(segmentation))
        file.annotations.append(entry)


def _read_objects(path: Path) -> np.ndarray | Problem:
    """The indices in a label map of objects, uint8 (H, W), which may be a colour image of VOC's colours."""
    if not path.is_file():
        return Problem(WITHOUT_MAP, str(path))
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image)
    except Exception as error:  # damaged images raise errors of many kinds
        return Problem('label map unreadable', str(path), (str(error).splitlines() or [''])[0])
    if pixels.ndim == 3:
        palette = voc_palette().astype(np.int64) @ (65536, 256, 1)
        table = np.full(2**24, -1, np.int16)
        table[palette] = np.arange(256)
        pixels = table[pixels[..., :3].astype(np.int64) @ (65536, 256, 1)]
        if (pixels < 0).any():
            return Problem('label map of other colours', str(path), "a colour that is none of VOC's 256")
    return pixels
