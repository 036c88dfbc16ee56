"""Writes the miniature COCO 2017: images, `instances_{train,val}2017.json` and `panoptic_{train,val}2017`."""

from pathlib import Path

import cv2
import numpy as np
from pycocotools import mask as coco_mask
from torchvision.models.detection import MaskRCNN_ResNet50_FPN_Weights

from ...runtime.files import write_json
from ..class_names import COCO_STUFF
from ..panoptic import PanopticMap
from .objects import KINDS
from .scenes import SURFACES, Instance, Scene, draw_scene, save

SPLITS = ('train', 'val')
# The ids of the 80 categories by name, which have gaps.
CATEGORY_IDS = {
    name: category_id
    for category_id, name in enumerate(MaskRCNN_ResNet50_FPN_Weights.DEFAULT.meta['categories'])
    if name not in ('__background__', 'N/A')
}
STUFF_IDS = {name: category_id for category_id, name in COCO_STUFF.items()}
CATEGORIES = [dict(id=category_id, name=name) for name, category_id in CATEGORY_IDS.items()]
PANOPTIC_CATEGORIES = [
    dict(id=category_id, name=name, isthing=isthing)
    for isthing, ids in ((1, CATEGORY_IDS), (0, STUFF_IDS))
    for name, category_id in ids.items()
]
# What the surfaces of scenes are called, whose other names are ADE20K's.
STUFF_NAMES = dict(
    sky='sky-other-merged', mountain='mountain-merged', grass='grass-merged', field='dirt-merged', tree='tree-merged'
)
# How likely each kind of object is; those without a category, which are background, are less frequent.
WEIGHTS = {kind: what.frequency if what.coco else 0.4 for kind, what in KINDS.items() if what.frequency}
MIN_AREA = 24  # objects with fewer visible pixels are not annotated
OUTLINE_SCALE = 4  # outlines are traced on masks enlarged by this factor, for vertices between the pixels


def write_image(root: Path, split: str, seed: int, index: int) -> tuple[dict, list[dict], dict]:
    """Draw and write an image and its panoptic map; returns its entry, instances without ids, and segments."""
    scene = draw_scene(np.random.default_rng([seed, 1, SPLITS.index(split), index]), WEIGHTS)
    height, width = scene.surface.shape
    number, name = index + 1, f'{index + 1:012d}'
    image = {'id': number, 'file_name': f'{name}.jpg', 'height': height, 'width': width}
    save(scene.image, root / f'{split}2017' / f'{name}.jpg')
    panoptic = panoptic_map(scene)
    save(np.asarray(panoptic.image()), root / f'annotations/panoptic_{split}2017/{name}.png')
    segments = {'image_id': number, 'file_name': f'{name}.png', 'segments_info': panoptic.segments()}
    annotations = filter(None, map(annotate, scene.instances))
    return image, [{**annotation, 'image_id': number} for annotation in annotations], segments


def write_annotations(root: Path, split: str, entries: list[tuple[dict, list[dict], dict]]) -> None:
    """Write `instances_*.json` and `panoptic_*.json`, of what `write_image` returned."""
    images, instances, segments = zip(*entries)
    numbered = [{**each, 'id': number} for number, each in enumerate(sum(instances, []), start=1)]
    content = {'info': {'description': 'Miniature in the format of COCO 2017'}, 'licenses': [], 'images': images}
    for name, annotations, categories in (
        ('instances', numbered, CATEGORIES),
        ('panoptic', segments, PANOPTIC_CATEGORIES),
    ):
        path = root / f'annotations/{name}_{split}2017.json'
        write_json(path, {**content, 'annotations': annotations, 'categories': categories}, indent=None)


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
    """Outlines of a (H, W) bool mask, one for each part, without holes: x0, y0, x1, y1, ... in pixels.

    (0, 0) is the outer corner of the first pixel.
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
