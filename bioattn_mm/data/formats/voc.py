"""Reading own data of detectors in Pascal VOC's format: an XML file for each image, and label maps of objects.

VOC counts pixels from 1, and the last one is in the box: that of the whole image is 1, 1, width and height.
"""

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from pycocotools import mask as coco_mask

from ...errors import InputError
from ...runtime.paths import images_below, is_hidden
from ..checks import Problem
from ..image_files import attempt
from . import voc_files
from .class_files import classes_named_in, is_background
from .coco import Annotation, Category, CocoFile, Source, image_entry
from .folders import by_split, split_of_name, subfolders
from .label_maps import read_label_map

BORDER = 255  # the value of pixels in label maps that do not count


class Folder(NamedTuple):
    """Where a folder in VOC's format has what."""

    root: Path
    xmls: Path
    images: Path
    maps: Path | None  # label maps of objects, for a model of masks


def find_voc(source: Path, with_mask: bool) -> dict[str, Source]:
    """The splits of a folder in VOC's format; none if it is in another format.

    For a model of masks the images are those of ImageSets/Segmentation, if there are.
    """
    if not source.is_dir():
        return {}

    def source_of(folder: Folder, listed: voc_files.SplitList | None = None) -> Source:
        place = listed.path if listed else folder.xmls
        return Source(folder.xmls, (place,), functools.partial(_read, folder, listed))

    root = voc_files.find_root(source)
    xmls = next((root / name for name in voc_files.XML_FOLDERS if (root / name).is_dir()), None) if root else None
    if xmls is not None:
        maps = root / voc_files.OBJECT_MAPS if with_mask and (root / voc_files.OBJECT_MAPS).is_dir() else None
        folder = Folder(root, xmls, voc_files.image_folder(root), maps)
        lists = (maps and voc_files.find_lists(root, 'Segmentation')) or voc_files.find_lists(root, 'Main')
        # VOC's own test images have no annotations.
        found = {
            split: source_of(folder, each)
            for split, each in lists.items()
            if split != 'test' or any((xmls / f'{stem}.xml').is_file() for stem in each.stems)
        }
        return found or dict(train=source_of(folder))
    names = [name for name in subfolders(source) if _has_xml(source / name)]
    places = {split: source / name for split, name in by_split(names, source).items()}
    if 'train' not in places and _has_xml(source):
        places['train'] = source
    return {split: source_of(Folder(place, place, place, None)) for split, place in places.items()}


def _has_xml(folder: Path) -> bool:
    """Whether there are XML files of VOC's format beside images."""
    path = next(folder.glob('[!.]*.xml'), None)
    if path is None or not re.search(rb'<annotation[\s>]', path.read_bytes()[:1000]):  # CVAT's own has <annotations>
        return False
    return bool(images_below(folder, required=False))


def _class_names(folder: Folder) -> tuple[str, ...]:
    """The classes that a file in the folder names, without the background, else those of all objects."""
    if named := classes_named_in(folder.root):
        return tuple(name for name in named if not is_background(name))
    files = [voc_files.read_xml(path) for path in sorted(_by_stem(folder.xmls.rglob('*.xml'), folder.xmls).values())]
    names = {box.name for file in files for box in file.boxes}
    if not names:
        such = ''.join([f', such as {fault}' for file in files for fault in file.faults][:1])
        raise InputError(
            f'{folder.xmls} has {len(files)} XML files, none of which has an object that can be used{such}'
        )
    return tuple(sorted(names))


def _read(folder: Folder, listed: voc_files.SplitList | None, classes: tuple[str, ...] | None) -> CocoFile:
    """Read the images of a list, or all that have an XML file; the classes are the folder's if none are given."""
    classes = classes or _class_names(folder)
    categories = [Category(index + 1, name) for index, name in enumerate(classes)]
    file = CocoFile(str(folder.xmls), [], [], categories, folder=folder.images)
    images = _by_stem(images_below(folder.images, required=False), folder.images)
    stems = listed.stems if listed else sorted(_by_stem(folder.xmls.rglob('*.xml'), folder.xmls))
    if listed is None:
        others = [
            path for path in sorted((folder.root / voc_files.LISTS).glob('*/*.txt')) if not split_of_name(path.stem)
        ]
        if others:
            file.changes.append(f'not used: {others[0]}, as its name says no split (train, val or test)')
        alone = sorted(set(images) - set(stems))
        file.left_out += [Problem('image without XML', str(images[stem])) for stem in alone]
    for stem in stems:
        path = folder.xmls / f'{stem}.xml'
        if listed and not path.is_file():
            file.faults.append(listed.absent(stem, path))
            continue
        annotated = voc_files.read_xml(path)
        image = images.get(stem, folder.images / Path(annotated.file_name).name)
        objects = attempt(read_label_map, folder.maps / f'{stem}.png', 'label map') if folder.maps else None
        if not image.is_file() and listed:
            file.faults.append(listed.absent(stem, folder.images / f'{stem}.jpg'))
        elif not image.is_file():
            file.left_out.append(Problem('XML without image', str(path)))
        elif isinstance(objects, Problem) and objects.kind == 'label map missing':
            file.left_out.append(objects)
        else:
            entry = image_entry(len(file.images) + 1, image, folder.images, annotated.size)
            wrong = [each for each in (entry, objects) if isinstance(each, Problem)]
            file.faults += [*annotated.faults, *wrong]
            if not wrong:
                file.images.append(entry)
                _add_objects(file, path, annotated.boxes, classes, objects)
    if stems and not file.images and not file.faults:
        and_map = f' and a label map in {folder.maps}' if folder.maps else ''
        raise InputError(f'no XML file of {folder.xmls} has an image in {folder.images}{and_map}')
    if num_difficult := sum(each.iscrowd for each in file.annotations):
        file.changes.append(
            f'{num_difficult} of {len(file.annotations)} objects are difficult: they count neither as found nor as '
            'missed (iscrowd)'
        )
    return file


def _by_stem(paths: Iterable[Path], folder: Path) -> dict[str, Path]:
    """Files below a folder that are not hidden, by their names from there without suffix, as lists have them."""
    names = {path.relative_to(folder): path for path in paths}
    return {name.with_suffix('').as_posix(): path for name, path in names.items() if not is_hidden(name)}


def _add_objects(
    file: CocoFile, path: Path, boxes: list[voc_files.Box], classes: tuple[str, ...], objects: np.ndarray | None
) -> None:
    """Add the objects of an XML file, those of the last image, with their masks if there is a label map of them."""
    image = file.images[-1]
    if objects is not None and objects.shape != (image.height, image.width):
        detail = f'its label map is of shape {objects.shape}, expected indices of {(image.height, image.width)}'
        file.faults.append(Problem('label map of another shape', str(path), detail))
        return
    for box in boxes:
        place = f'object {box.number}'
        if box.name not in classes:
            known = ', '.join(classes[:10]) + ', ...' * (len(classes) > 10)
            detail = f'{place}: {box.name!r} is no class, expected {known}'
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
            source=f'{path}, {place}',
        )
        if objects is not None:
            mask = (objects == box.number) & (box.number < BORDER)  # without pixels it has no area
            runs = coco_mask.encode(np.asfortranarray(mask, np.uint8))
            segmentation = dict(size=list(mask.shape), counts=runs['counts'].decode())
            entry.area, entry.segmentation = int(mask.sum()), msgspec.Raw(msgspec.json.encode(segmentation))
        file.annotations.append(entry)
