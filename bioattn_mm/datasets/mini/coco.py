"""Writes the miniature COCO 2017: images, `instances_{train,val}2017.json` and `panoptic_{train,val}2017`."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from PIL import Image
from pycocotools import mask as coco_mask

from ..class_names import COCO_CATEGORIES, COCO_STUFF
from ..panoptic import PanopticMap
from .drawing import Instance, Scene
from .objects import KINDS
from .scenes import SURFACES, draw_scene

FOLDER = 'coco'
SPLITS = ('train', 'val')
CATEGORIES = [
    {'supercategory': group, 'id': category_id, 'name': name}
    for group, categories in COCO_CATEGORIES.items()
    for category_id, name in categories.items()
]
CATEGORY_IDS = {category['name']: category['id'] for category in CATEGORIES}
PANOPTIC_CATEGORIES = [dict(category, isthing=1) for category in CATEGORIES] + [
    dict(supercategory=group, id=category_id, name=name, isthing=0)
    for category_id, (group, name) in COCO_STUFF.items()
]
STUFF_IDS = {name: category_id for category_id, (_, name) in COCO_STUFF.items()}
# What the surfaces of scenes are called, whose other names are ADE20K's.
STUFF_NAMES = dict(
    sky='sky-other-merged', mountain='mountain-merged', grass='grass-merged', field='dirt-merged', tree='tree-merged'
)
# How likely each kind of object is; those without a category, which are background, are less frequent.
WEIGHTS = {kind: what.frequency if what.coco else 0.4 for kind, what in KINDS.items() if what.frequency}
MIN_AREA = 24  # objects with fewer visible pixels are not annotated
OUTLINE_SCALE = 4  # outlines are traced on masks enlarged by this factor, for vertices between the pixels


def write_coco(root: Path, num_images: dict[str, int], seed: int, draw_all: Callable) -> None:
    """Write `train2017/`, `val2017/` and `annotations/`.

    Args:
        root: Existing empty folder.
        num_images: Images of 'train' and 'val'.
        seed: Chooses the scenes.
        draw_all: `draw_all(write, count)` calls `write(index)` for all indices below count, in any order, and returns
            the list of results in the order of the indices.
    """
    for split in SPLITS:
        (root / f'{split}2017').mkdir()
        (root / 'annotations' / f'panoptic_{split}2017').mkdir(parents=True)
        images, annotations, segments = zip(*draw_all(partial(write_image, root, split, seed), num_images[split]))
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
        }
        numbered = [{**each, 'id': i} for i, each in enumerate(sum(annotations, []), start=1)]
        for name, own in (
            ('instances', {'annotations': numbered, 'categories': CATEGORIES}),
            ('panoptic', {'annotations': segments, 'categories': PANOPTIC_CATEGORIES}),
        ):
            (root / 'annotations' / f'{name}_{split}2017.json').write_text(
                json.dumps({**content, **own}), encoding='utf-8'
            )


def write_image(root: Path, split: str, seed: int, index: int) -> tuple[dict, list[dict], dict]:
    """Draw and write one image and its panoptic map.

    Returns:
        Its entry of 'images', its instances, which lack their ids, and its segments.
    """
    scene = draw_scene(np.random.default_rng([seed, 1, SPLITS.index(split), index]), WEIGHTS)
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
    panoptic = panoptic_map(scene)
    name = f'{index + 1:012d}.png'
    panoptic.image().save(root / 'annotations' / f'panoptic_{split}2017' / name)
    segments = {'image_id': image['id'], 'file_name': name, 'segments_info': panoptic.segments()}
    annotations = [annotate(instance) for instance in scene.instances]
    return image, [{**annotation, 'image_id': image['id']} for annotation in annotations if annotation], segments


def panoptic_map(scene: Scene) -> PanopticMap:
    """The segments of a scene: things by object, stuff by category; hardly visible objects are unlabelled."""
    stuff = np.array([stuff_id(name) for name in SURFACES])[scene.surface]
    for instance in scene.instances:
        if KINDS[instance.kind].coco is None:
            stuff[instance.mask] = stuff_id(KINDS[instance.kind].ade)
    panoptic = PanopticMap(scene.surface.shape)
    for category_id in np.unique(stuff).tolist():
        panoptic.add(stuff == category_id, category_id or None)
    for instance in scene.instances:
        category = KINDS[instance.kind].coco
        if category is not None:
            is_annotated = instance.mask.sum() >= MIN_AREA
            panoptic.add(instance.mask, CATEGORY_IDS[category] if is_annotated else None, instance.crowd)
    return panoptic


def stuff_id(name: str | None) -> int:
    """The category of a surface or an object without instances, by its name in ADE20K; 0 if COCO has none."""
    return STUFF_IDS.get(STUFF_NAMES.get(name, name), 0)


def annotate(instance: Instance) -> dict | None:
    """The annotation of an instance without its ids; None for background and for hardly visible objects."""
    category = KINDS[instance.kind].coco
    if category is None or instance.mask.sum() < MIN_AREA:
        return None
    segmentation = run_lengths(instance.mask) if instance.crowd else polygons(instance.mask)
    if not segmentation:
        return None
    encoded = coco_mask.frPyObjects(segmentation, *instance.mask.shape)
    if not instance.crowd:
        encoded = coco_mask.merge(encoded)
    return {
        'segmentation': segmentation,
        'area': float(coco_mask.area(encoded)),
        'iscrowd': int(instance.crowd),
        'bbox': coco_mask.toBbox(encoded).tolist(),
        'category_id': CATEGORY_IDS[category],
    }


def polygons(mask: np.ndarray) -> list[list[float]]:
    """Outlines of a (H, W) bool mask, one for each part; holes are filled.

    Returns:
        list[list[float]]: x0, y0, x1, y1, ... in pixels, where (0, 0) is the outer corner of the first pixel.
    """
    # A border of background, so that outlines also run along the image's edges.
    padded = cv2.copyMakeBorder(mask.astype(np.uint8) * 255, 1, 1, 1, 1, cv2.BORDER_CONSTANT)
    enlarged = cv2.resize(padded, None, fx=OUTLINE_SCALE, fy=OUTLINE_SCALE, interpolation=cv2.INTER_LINEAR)
    contours, _ = cv2.findContours((enlarged > 127).astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    outlines = []
    for contour in contours:
        contour = cv2.approxPolyDP(contour, 0.2 * OUTLINE_SCALE, closed=True)
        if len(contour) > 2 and cv2.contourArea(contour) >= 2 * OUTLINE_SCALE**2:
            # The contour runs through centres of enlarged pixels; the outline is in pixels of the mask.
            points = (contour[:, 0] + 0.5) / OUTLINE_SCALE - 1
            outlines.append(np.clip(points, 0, mask.shape[::-1]).round(2).ravel().tolist())
    return outlines


def run_lengths(mask: np.ndarray) -> dict:
    """COCO's uncompressed code of a (H, W) bool mask: lengths of runs of 0 and 1 in turn, column by column."""
    # A run of 0 comes first, of length 0 if the first pixel is 1.
    starts = np.flatnonzero(np.diff(mask.ravel(order='F'), prepend=False))
    return {'counts': np.diff(starts, prepend=0, append=mask.size).tolist(), 'size': list(mask.shape)}
