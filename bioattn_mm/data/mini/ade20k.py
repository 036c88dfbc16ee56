"""Writes the miniature ADE20K (150 classes, 100 of them with instances), and rates its most frequent class."""

from pathlib import Path

import numpy as np
from PIL import Image

from ..ade20k import INSTANCES, THINGS, convert_split
from ..class_names import ADE20K_CLASSES
from .objects import KINDS
from .scenes import SURFACES, Scene, draw_scene, save

SPLITS = {'training': 'ADE_train_{:08d}', 'validation': 'ADE_val_{:08d}'}
VALUES = {name: value for value, name in enumerate(ADE20K_CLASSES, start=1)}  # of a pixel in the annotations
# How likely each kind of object is; those without a class, which stay unlabelled, are rare.
WEIGHTS = {kind: what.frequency if what.ade else 0.15 for kind, what in KINDS.items() if what.frequency}


def write_image(root: Path, split: str, seed: int, index: int) -> None:
    """Draw and write one image and its annotations."""
    scene = draw_scene(np.random.default_rng([seed, 0, list(SPLITS).index(split), index]), WEIGHTS)
    stem = SPLITS[split].format(index + 1)
    save(scene.image, root / 'images' / split / f'{stem}.jpg')
    save(label_map(scene), root / 'annotations' / split / f'{stem}.png')
    save(instance_map(scene), root / INSTANCES / split / f'{stem}.png')


def write_annotations(root: Path, split: str, _: list) -> None:
    """Write what `tools/convert_ade20k.py` makes of the files of a split."""
    convert_split(root, split)


def label_map(scene: Scene) -> np.ndarray:
    """The annotation of a scene: (H, W) uint8, class + 1, or 0 where the object has no class."""
    labels = np.array([VALUES[name] for name in SURFACES], np.uint8)[scene.surface]
    for instance in scene.instances:
        labels[instance.mask] = VALUES.get(KINDS[instance.kind].ade, 0)
    return labels


def instance_map(scene: Scene) -> np.ndarray:
    """The instances of a scene: (H, W, 3) uint8, the class among `THINGS` + 1, the number of the instance, and 0.

    ADE20K has no crowds: their members are of their class, and of no instance.
    """
    pixels = np.zeros((*scene.surface.shape, 3), np.uint8)
    for number, instance in enumerate(scene.instances, start=1):
        name = KINDS[instance.kind].ade
        if name in THINGS and not instance.crowd:
            pixels[instance.mask, :2] = THINGS.index(name) + 1, number
    return pixels


def majority_baseline(ade_root: str | Path) -> tuple[str, float]:
    """The most frequent class of the validation images below a folder, and its mIoU in percent, predicted everywhere.

    It is mmseg's `IoUMetric` of a useless model: unlabelled pixels and classes that do not occur do not count.
    """
    paths = (Path(ade_root) / 'annotations' / 'validation').glob('*.png')
    values = np.concatenate([np.array(Image.open(path)).ravel() for path in paths])
    pixels = np.bincount(values, minlength=len(VALUES) + 1)[1:]
    # The prediction's union with its own class is all labelled pixels; the IoU of every other class is 0.
    iou = pixels.max() / pixels.sum()
    return ADE20K_CLASSES[pixels.argmax()], float(100 * iou / np.count_nonzero(pixels))
