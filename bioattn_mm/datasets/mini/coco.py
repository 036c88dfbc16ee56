"""Writes the miniature COCO 2017: images and `instances_{train,val}2017.json`."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from PIL import Image
from pycocotools import mask as coco_mask

from .classes import COCO_CATEGORIES
from .drawing import Instance
from .objects import KINDS
from .scenes import draw_scene

FOLDER = 'coco'
SPLITS = ('train', 'val')
MIN_AREA = 24  # visible pixels; smaller remains of an object are not annotated
OUTLINE_SCALE = 4  # outlines are traced on masks enlarged by this factor, for vertices between the pixels

# How likely each kind of object is. Trees and houses have no category and serve as background.
WEIGHTS = {kind: 1.0 if KINDS[kind].coco else 0.5 for kind in KINDS if kind != 'flag'}
CROWD_CHANCE = 0.3


def write_coco(root: Path, num_images: dict[str, int], seed: int, draw_all: Callable) -> None:
    """Write `train2017/`, `val2017/` and `annotations/`.

    Args:
        root (Path): Existing empty folder.
        num_images (dict[str, int]): Images of 'train' and 'val'.
        seed (int): Chooses the scenes.
        draw_all (Callable): `draw_all(write, count)` calls `write(index)` for all indices below count, in any
            order, and returns the list of results in the order of the indices.
    """
    (root / 'annotations').mkdir()
    for split in SPLITS:
        (root / f'{split}2017').mkdir()
        images, annotations = zip(*draw_all(partial(write_image, root, split, seed), num_images[split]))
        content = {
            'info': {
                'description': 'Miniature in the format of COCO 2017, drawn by bioattn_mm',
                'url': '',
                'version': '1.0',
                'year': 2017,
                'contributor': 'bioattn_mm',
                'date_created': '2017/01/01',
            },
            'licenses': [{'url': '', 'id': 1, 'name': 'No known copyright restrictions'}],
            'images': images,
            'annotations': number(images, annotations),
            'categories': [
                {'supercategory': group, 'id': category_id, 'name': name}
                for group, categories in COCO_CATEGORIES.items()
                for category_id, name in categories.items()
            ],
        }
        (root / 'annotations' / f'instances_{split}2017.json').write_text(json.dumps(content))


def write_image(root: Path, split: str, seed: int, index: int) -> tuple[dict, list[dict]]:
    """Draw and write one image; returns its entry of 'images' and its annotations without ids."""
    rng = np.random.default_rng([seed, 1, SPLITS.index(split), index])
    scene = draw_scene(rng, WEIGHTS, CROWD_CHANCE)
    height, width = scene.surface.shape
    image = {
        'license': 1,
        'file_name': f'{index + 1:012d}.jpg',
        'coco_url': '',
        'height': height,
        'width': width,
        'date_captured': '2017-01-01 00:00:00',
        'flickr_url': '',
        'id': index + 1,
    }
    Image.fromarray(scene.image).save(root / f'{split}2017' / image['file_name'], quality=93)
    annotations = [annotate(instance) for instance in scene.instances]
    return image, [annotation for annotation in annotations if annotation]


def annotate(instance: Instance) -> dict | None:
    """The annotation of one instance without its ids; None for background and for hardly visible objects."""
    category_ids = {name: i for categories in COCO_CATEGORIES.values() for i, name in categories.items()}
    category = KINDS[instance.kind].coco
    if category is None or instance.mask.sum() < MIN_AREA:
        return None
    height, width = instance.mask.shape
    segmentation = run_lengths(instance.mask) if instance.crowd else polygons(instance.mask)
    if not segmentation:
        return None
    encoded = coco_mask.frPyObjects(segmentation, height, width)
    if not instance.crowd:
        encoded = coco_mask.merge(encoded)
    return {
        'segmentation': segmentation,
        'area': float(coco_mask.area(encoded)),
        'iscrowd': int(instance.crowd),
        'bbox': coco_mask.toBbox(encoded).tolist(),
        'category_id': category_ids[category],
    }


def number(images: Sequence[dict], annotations: Sequence[list[dict]]) -> list[dict]:
    """Flatten the annotations of all images and give them ids from 1."""
    flat = [
        {**annotation, 'image_id': image['id']}
        for image, of_image in zip(images, annotations)
        for annotation in of_image
    ]
    return [{**annotation, 'id': i} for i, annotation in enumerate(flat, start=1)]


def polygons(mask: np.ndarray) -> list[list[float]]:
    """Outlines of a mask, one [x0, y0, x1, y1, ...] in pixels for each visible part; holes are filled.

    Args:
        mask (np.ndarray): (H, W) bool.

    Returns:
        list[list[float]]: Coordinates where (0, 0) is the outer corner of the first pixel.
    """
    # A border of background, so that outlines also run along the image's edges.
    padded = cv2.copyMakeBorder(mask.astype(np.uint8) * 255, 1, 1, 1, 1, cv2.BORDER_CONSTANT)
    enlarged = cv2.resize(padded, None, fx=OUTLINE_SCALE, fy=OUTLINE_SCALE, interpolation=cv2.INTER_LINEAR)
    contours, _ = cv2.findContours((enlarged > 127).astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    outlines = []
    for contour in contours:
        contour = cv2.approxPolyDP(contour, 0.2 * OUTLINE_SCALE, closed=True)
        if len(contour) > 2 and cv2.contourArea(contour) >= 2 * OUTLINE_SCALE**2:
            # From the middle of an enlarged pixel to the pixels of the mask.
            points = (contour[:, 0] + 0.5) / OUTLINE_SCALE - 1
            outlines.append(np.clip(points, 0, mask.shape[::-1]).round(2).ravel().tolist())
    return outlines


def run_lengths(mask: np.ndarray) -> dict:
    """COCO's uncompressed code of a (H, W) bool mask: lengths of runs of 0 and 1, column by column."""
    flat = np.concatenate([[0], mask.ravel(order='F'), [0]])
    changes = np.flatnonzero(np.diff(flat))
    lengths = np.diff(np.concatenate([[0], changes, [mask.size]]))
    # A run that ends with the last pixel has its end in `changes` already.
    counts = lengths[:-1] if lengths[-1] == 0 else lengths
    return {'counts': counts.tolist(), 'size': list(mask.shape)}
