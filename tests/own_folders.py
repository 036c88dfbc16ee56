"""Folders of own data as users have them: a few images of three classes, drawn here."""

import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image
from pycocotools import mask as coco_mask

from bioattn_mm.data.formats.coco import CocoFile, mask_of, read_coco_file
from bioattn_mm.data.formats.folders import OwnData
from bioattn_mm.training.config.pipelines import find_datasets

CLASSES = ('bolt', 'nut', 'washer')
# What is drawn of each class: R, G, B and the number of corners.
LOOKS = {'bolt': ((210, 60, 50), 4), 'nut': ((60, 180, 80), 3), 'washer': ((60, 90, 210), 24)}
# Of the label maps, in which washers do not count.
MASK_CLASSES = ('table', 'bolt', 'nut')
HEIGHT, WIDTH = 96, 120
UPRIGHT = Image.Exif()  # of a camera that was held upright: images are turned when they are loaded
UPRIGHT[0x0112] = 6
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


def write_mask_folder(folder: Path, seeds: range, images: str = 'images', masks: str = 'masks') -> Path:
    """A folder with `images`, `masks` and `classes.txt`, without validation images; the images are of two types."""
    write_images(folder / images, seeds[::2], '.jpg', NUM_OBJECTS_OF_SCENE)
    write_images(folder / images, seeds[1::2], '.png', NUM_OBJECTS_OF_SCENE)
    (folder / masks).mkdir(parents=True)
    for seed in seeds:
        Image.fromarray(labels(seed)).save(folder / masks / f'part_{seed:03d}.png')
    (folder / 'classes.txt').write_text('\n'.join(MASK_CLASSES) + '\n')
    return folder


def write_yolo_folder(folder: Path, images: str = 'images/{}', labels: str = 'labels/{}', **splits: range) -> Path:
    """A folder with `data.yaml`, `images/SPLIT` and `labels/SPLIT`, of polygons."""
    for split, seeds in splits.items():
        place = folder / labels.format(split)
        place.mkdir(parents=True, exist_ok=True)
        for seed, name in zip(seeds, write_images(folder / images.format(split), seeds)):
            image, objects = draw(seed)
            shares = [(label, (points / image.shape[1::-1]).ravel()) for label, points in objects]
            lines = [f'{label} {" ".join(f"{share:.9g}" for share in each)}\n' for label, each in shares]
            (place / f'{Path(name).stem}.txt').write_text(''.join(lines))
    lines = [f'{split}: {images.format(split)}' for split in splits] + [f'names: [{", ".join(CLASSES)}]']
    (folder / 'data.yaml').write_text('\n'.join(lines) + '\n')
    return folder


def write_voc_folder(
    folder: Path, images: str = 'JPEGImages', annotations: str = 'Annotations', **splits: range
) -> Path:
    """A folder with `JPEGImages`, `Annotations`, `ImageSets/Main` and label maps of objects and classes.

    An XML file has a line for the object, and one for its box.
    """
    for name in 'ImageSets/Main ImageSets/Segmentation SegmentationObject SegmentationClass'.split():
        (folder / name).mkdir(parents=True)
    for split, seeds in splits.items():
        names = [Path(name).stem for name in write_images(folder / images.format(split), seeds)]
        place = folder / annotations.format(split)
        place.mkdir(exist_ok=True)
        for kind in ('Main', 'Segmentation'):
            (folder / f'ImageSets/{kind}/{split}.txt').write_text('\n'.join(names) + '\n')
        for seed, name in zip(seeds, names):
            image, objects = draw(seed)
            height, width = image.shape[:2]
            numbers, classes = np.zeros((2, height, width), np.uint8)
            lines = ['<annotation>', f'<size><width>{width}</width><height>{height}</height></size>']
            for number, (label, points) in enumerate(objects, 1):
                cv2.fillPoly(numbers, [points], number)
                cv2.fillPoly(classes, [points], label + 1)
                corners = zip(('xmin', 'ymin', 'xmax', 'ymax'), (*(points.min(0) + 1), *points.max(0)))  # from 1 on
                lines += [
                    f'<object><name>{CLASSES[label]}</name><difficult>0</difficult><bndbox>',
                    ''.join(f'<{corner}>{value}</{corner}>' for corner, value in corners) + '</bndbox></object>',
                ]
            (place / f'{name}.xml').write_text('\n'.join([*lines, '</annotation>', '']))
            for kind, values in (('Object', numbers), ('Class', classes)):
                Image.fromarray(values).save(folder / f'Segmentation{kind}/{name}.png')
    return folder


def images_of(dataset: dict) -> list[Path]:
    """The files that a dataset of mmdet or mmseg would load, all of which must exist."""
    assert [*find_datasets(dataset)] == [dataset]  # where a training looks for the folders of its data
    init_default_scope('mmdet' if dataset['type'] == 'CocoDataset' else 'mmseg')
    dataset = dict(dataset, pipeline=[], metainfo=dict(classes=CLASSES, palette=[(0, 0, i) for i in range(3)]))
    built = DATASETS.build(dataset)
    paths = [Path(built.get_data_info(i)['img_path']) for i in range(len(built))]
    assert all(path.is_file() for path in paths)
    return paths


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
    """Write the images of a folder, uint8 (H, W, 3) in RGB, anew into files with a suffix."""
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
