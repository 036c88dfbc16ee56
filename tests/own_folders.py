"""Folders of own data as users have them: a few images of three classes, drawn here."""

import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from PIL import Image
from pycocotools import mask as coco_mask

from bioattn_mm.data.formats.coco import CocoFile, mask_of, read_coco_file
from bioattn_mm.data.formats.folders import OwnData

CLASSES = ('bolt', 'nut', 'washer')
# What is drawn of each class: R, G, B and the number of corners.
LOOKS = {'bolt': ((210, 60, 50), 4), 'nut': ((60, 180, 80), 3), 'washer': ((60, 90, 210), 24)}
# Of the label maps, in which washers do not count.
MASK_CLASSES = ('table', 'bolt', 'nut')
HEIGHT, WIDTH = 96, 120
# Few, as those that are hidden are annotated like the others; in scenes with label maps more, against the table.
NUM_OBJECTS, NUM_OBJECTS_OF_SCENE = 2, 4


def draw(seed: int, num_objects: int = NUM_OBJECTS) -> tuple[np.ndarray, list[tuple[int, np.ndarray]]]:
    """An image, (H, W, 3) uint8 in RGB, and its objects from back to front: class and corners, (N, 2)."""
    rng = np.random.default_rng(seed)
    height, width = HEIGHT + seed % 3 * 8, WIDTH - seed % 2 * 16
    image = np.full((height, width, 3), 128, np.uint8) + rng.integers(0, 40, (height, width, 1), np.uint8)
    objects = []
    for _ in range(num_objects):
        label = int(rng.integers(len(CLASSES)))
        colour, corners = LOOKS[CLASSES[label]]
        radius = rng.integers(18, 30)
        centre = rng.uniform(radius, (width - radius, height - radius))
        angles = np.linspace(0, 2 * np.pi, corners, endpoint=False) + rng.uniform(0, 2 * np.pi)
        points = (centre + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)).round().astype(np.int32)
        cv2.fillPoly(image, [points], colour)
        objects.append((label, points))
    return image, objects


def write_images(folder: Path, seeds: range, suffix: str = '.jpg', num_objects: int = NUM_OBJECTS) -> list[str]:
    """Write images into a folder; return their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        Image.fromarray(draw(seed, num_objects)[0]).save(folder / f'part_{seed:03d}{suffix}')
    return [f'part_{seed:03d}{suffix}' for seed in seeds]


def coco(seeds: range, names: list[str]) -> dict:
    """The annotations of drawn images in COCO's format, as simple as tools write them: without area and iscrowd."""
    images, annotations = [], []
    for image_id, (seed, name) in enumerate(zip(seeds, names), start=10):
        image, objects = draw(seed)
        images.append(dict(id=image_id, file_name=name, height=image.shape[0], width=image.shape[1]))
        for label, points in objects:
            (left, top), (right, bottom) = points.min(0).tolist(), points.max(0).tolist()
            bbox, segmentation = [left, top, right - left, bottom - top], [points.ravel().tolist()]
            references = dict(id=len(annotations) + 1, image_id=image_id, category_id=5 * label + 2)
            annotations.append(dict(references, bbox=bbox, segmentation=segmentation))
    categories = [dict(id=5 * label + 2, name=name) for label, name in enumerate(CLASSES)]
    return dict(images=images, annotations=annotations, categories=categories)


def write_coco_folder(folder: Path, seeds: range) -> Path:
    """A folder with `images` and `annotations.json`, without validation images."""
    names = write_images(folder / 'images', seeds)
    (folder / 'annotations.json').write_text(json.dumps(coco(seeds, names)))
    return folder


def labels(seed: int) -> np.ndarray:
    """The label map of an image, (H, W) uint8: indices of `MASK_CLASSES`, and 255 where a pixel does not count."""
    image, objects = draw(seed, NUM_OBJECTS_OF_SCENE)
    label_map = np.zeros(image.shape[:2], np.uint8)
    for label, points in objects:
        name = CLASSES[label]
        cv2.fillPoly(label_map, [points], MASK_CLASSES.index(name) if name in MASK_CLASSES else 255)
    return label_map


def write_mask_folder(folder: Path, seeds: range) -> Path:
    """A folder with `images`, `masks` and `classes.txt`, without validation images; the images are of two types."""
    write_images(folder / 'images', seeds[::2], '.jpg', NUM_OBJECTS_OF_SCENE)
    write_images(folder / 'images', seeds[1::2], '.png', NUM_OBJECTS_OF_SCENE)
    (folder / 'masks').mkdir()
    for seed in seeds:
        Image.fromarray(labels(seed)).save(folder / f'masks/part_{seed:03d}.png')
    (folder / 'classes.txt').write_text('\n'.join(MASK_CLASSES) + '\n')
    return folder


def yolo_labels(seed: int) -> str:
    """The label file of an image in YOLO's format, with polygons."""
    image, objects = draw(seed)
    sides = image.shape[1::-1]
    return ''.join(
        f'{label} {" ".join(f"{value:.9g}" for value in (points / sides).ravel())}\n' for label, points in objects
    )


def write_yolo_folder(folder: Path, **splits: range) -> Path:
    """A folder with `data.yaml`, `images/SPLIT` and `labels/SPLIT`; images without objects have no labels."""
    for split, seeds in splits.items():
        write_images(folder / f'images/{split}', seeds)
        (folder / f'labels/{split}').mkdir(parents=True)
        for seed in seeds:
            (folder / f'labels/{split}/part_{seed:03d}.txt').write_text(yolo_labels(seed))
    lines = [f'{split}: images/{split}' for split in splits] + [f'names: [{", ".join(CLASSES)}]']
    (folder / 'data.yaml').write_text('\n'.join(lines) + '\n')
    return folder


def voc_xml(seed: int) -> str:
    """The XML file of an image in Pascal VOC's format: each object from its second line on."""
    image, objects = draw(seed)
    lines = ['<annotation>', f'<size><width>{image.shape[1]}</width><height>{image.shape[0]}</height></size>']
    for label, points in objects:
        (left, top), (right, bottom) = points.min(0) + 1, points.max(0)  # VOC counts from 1
        lines += [
            f'<object><name>{CLASSES[label]}</name><difficult>0</difficult><bndbox>',
            f'<xmin>{left}</xmin><ymin>{top}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax>',
            '</bndbox></object>',
        ]
    return '\n'.join([*lines, '</annotation>', ''])


def write_voc_folder(folder: Path, **splits: range) -> Path:
    """A folder with `JPEGImages`, `Annotations`, `ImageSets/Main` and label maps of objects and classes."""
    folders = 'Annotations ImageSets/Main ImageSets/Segmentation SegmentationObject SegmentationClass'
    for name in folders.split():
        (folder / name).mkdir(parents=True)
    for split, seeds in splits.items():
        names = [Path(name).stem for name in write_images(folder / 'JPEGImages', seeds)]
        for kind in ('Main', 'Segmentation'):
            (folder / f'ImageSets/{kind}/{split}.txt').write_text('\n'.join(names) + '\n')
        for seed, name in zip(seeds, names):
            (folder / f'Annotations/{name}.xml').write_text(voc_xml(seed))
            image, objects = draw(seed)
            numbers, classes = np.zeros((2, *image.shape[:2]), np.uint8)
            for number, (label, points) in enumerate(objects, 1):
                cv2.fillPoly(numbers, [points], number)
                cv2.fillPoly(classes, [points], label + 1)
            for kind, values in (('Object', numbers), ('Class', classes)):
                Image.fromarray(values).save(folder / f'Segmentation{kind}/{name}.png')
    return folder


def contents(own: OwnData) -> dict[str, CocoFile]:
    """The files of annotations by split; the images of each are there."""
    found = {split: read_coco_file(dataset['ann_file']) for split, dataset in own.datasets.items()}
    for split, content in found.items():
        folder = Path(own.datasets[split]['data_prefix']['img'])
        assert not content.faults and all((folder / image.file_name).is_file() for image in content.images)
    return found


def objects_of(content: CocoFile) -> dict[str, list[tuple[str, np.ndarray, np.ndarray | None]]]:
    """Class, box and mask, if there is one, of the objects by the name of their image."""
    found = {Path(image.file_name).stem: [] for image in content.images}
    images = {image.id: image for image in content.images}
    names = {category.id: category.name for category in content.categories}
    for each in content.annotations:
        image, mask = images[each.image_id], mask_of(each)
        if mask:
            runs = coco_mask.frPyObjects(mask, image.height, image.width)[0] if isinstance(mask, list) else mask
            mask = coco_mask.decode(runs)
        found[Path(image.file_name).stem].append((names[each.category_id], np.array(each.bbox), mask))
    return found


def corners(document: dict) -> None:
    """Write boxes of COCO's format as corners x1, y1, x2, y2."""
    for each in document['annotations']:
        x, y, width, height = each['bbox']
        each['bbox'] = [x, y, x + width, y + height]


def convert_images(folder: Path, write: Callable[[Path, np.ndarray], None], suffix: str = '.npy') -> Path:
    """Write the images of a folder of `write_coco_folder` or `write_mask_folder` anew.

    Args:
        folder: The folder.
        write: Writes a file of an image, uint8 (H, W, 3) in RGB.
        suffix: Of the files.
    """
    for path in sorted((folder / 'images').iterdir()):
        image = np.asarray(Image.open(path))
        path.unlink()
        write(path.with_suffix(suffix), image)
    annotations = folder / 'annotations.json'
    if annotations.is_file():
        content = json.loads(annotations.read_text())
        for image in content['images']:
            image['file_name'] = str(Path(image['file_name']).with_suffix(suffix))
        annotations.write_text(json.dumps(content))
    return folder
