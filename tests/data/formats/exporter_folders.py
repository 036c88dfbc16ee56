"""Folders of own data in the habits of exporters: few small images, drawn here."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (96, 64)
BOX, POLYGON = '0 .4 .4 .3 .3\n', '1 .1 .1 .5 .1 .5 .6 .1 .6\n'


def picture(path: Path, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new('RGB', SIZE, 'red').save(path, **options)
    return path


def turned() -> Image.Exif:
    """EXIF data of a camera that was held upright."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def text(path: Path, content: str, encoding: str = 'utf-8') -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode(encoding))


def write_coco(folder: Path, change: Callable = lambda document: None, name: str = 'annotations.json') -> Path:
    """Six images with a bolt and a nut each, whose file is changed before it is written."""
    images = [dict(id=i + 1, file_name=f'{i:03}.jpg', width=SIZE[0], height=SIZE[1]) for i in range(6)]
    boxes = [(i, k, [5 + 10 * k + i, 6 + 8 * k, 30, 20]) for i in range(6) for k in range(2)]
    annotations = [
        dict(
            id=1 + 2 * i + k, image_id=i + 1, category_id=k + 1, bbox=[x, y, w, h], area=w * h, iscrowd=0,
            segmentation=[[x, y, x + w, y, x + w, y + h, x, y + h]],
        )
        for i, k, (x, y, w, h) in boxes
    ]  # fmt: skip
    categories = [dict(id=1, name='bolt'), dict(id=2, name='nut')]
    document = dict(images=images, annotations=annotations, categories=categories)
    for image in images:
        picture(folder / image['file_name'])
    change(document)
    text(folder / name, json.dumps(document))
    return folder


def write_yolo(folder: Path, labels: str, names: str | None = '[bolt, nut]', image: str = 'images/train') -> Path:
    for number in range(4):
        picture(folder / image / f'{number:03}.jpg')
        text(folder / image.replace('images', 'labels') / f'{number:03}.txt', labels)
    if names:
        text(folder / 'data.yaml', f'train: {image}\nval: {image}\nnames: {names}\n')
    return folder


def write_voc(folder: Path, names: str, encoding: str = 'utf-8', head: str = '', label: str = 'bolt') -> Path:
    for name in names.split():
        picture(folder / f'JPEGImages/{name}.jpg')
        corners = '<xmin>21</xmin><ymin>11</ymin><xmax>50</xmax><ymax>30</ymax>'
        thing = f'<object><name>{label}</name><bndbox>{corners}</bndbox></object>'
        size = f'<size><width>{SIZE[0]}</width><height>{SIZE[1]}</height></size>'
        content = f'{head}<annotation><filename>{name}.jpg</filename>{size}{thing}</annotation>'
        text(folder / f'Annotations/{name}.xml', content, encoding)
    return folder


def write_masks(folder: Path, splits: str, classes: str = 'background\npolyp\n') -> Path:
    labels = np.zeros(SIZE[::-1], np.uint8)
    labels[10:40, 20:60] = 1
    for split in splits.split():
        for number in range(3):
            picture(folder / f'images/{split}/{number}.jpg')
            (folder / f'masks/{split}').mkdir(parents=True, exist_ok=True)
            Image.fromarray(labels).save(folder / f'masks/{split}/{number}.png')
    text(folder / 'classes.txt', classes)
    return folder


def write_classes(folder: Path, splits: str = '.', classes: str = 'glioma notumor') -> Path:
    for split in splits.split():
        for name in classes.split():
            for number in range(3):
                picture(folder / split / name / f'{number}.jpg')
    return folder


def corners(document: dict) -> None:
    for each in document['annotations']:
        x, y, width, height = each['bbox']
        each['bbox'] = [x, y, x + width, y + height]


def swapped(document: dict) -> None:
    for each in document['annotations']:
        xs, ys = each['segmentation'][0][::2], each['segmentation'][0][1::2]
        each['segmentation'] = [[value for point in zip(ys, xs) for value in point]]


def shares(document: dict) -> None:
    for each in document['annotations']:
        each['bbox'] = [value / side for value, side in zip(each['bbox'], SIZE * 2)]


def corners_alone(document: dict) -> None:
    corners(document)
    for each in document['annotations']:
        del each['segmentation'], each['area']
        each['bbox'] = [value + shift for value, shift in zip(each['bbox'], (40, 20, 40, 20))]
