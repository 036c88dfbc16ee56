"""Writes the miniature ADE20K (150 classes, 100 of them with instances), and rates its most frequent class.

The instances are written as the site has them, and converted as those of the real dataset are.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from ..ade20k import INSTANCES, THINGS, convert_split
from ..class_names import ADE20K_CLASSES
from ..parallel import run_all
from .drawing import Scene
from .objects import KINDS
from .scenes import SURFACES, draw_scene

FOLDER = 'ADEChallengeData2016'  # as the real archive unpacks
SPLITS = {'training': 'ADE_train_{:08d}', 'validation': 'ADE_val_{:08d}'}
UNLABELLED = 0
VALUES = {name: value for value, name in enumerate(ADE20K_CLASSES, start=1)}  # of a pixel in the annotations
# How likely each kind of object is; those without a class, which stay unlabelled, are rare.
WEIGHTS = {kind: what.frequency if what.ade else 0.15 for kind, what in KINDS.items() if what.frequency}


def write_ade20k(root: Path, num_images: dict[str, int], seed: int, draw_all: Callable) -> None:
    """Write `images/`, `annotations/`, `annotations_instance/`, `objectInfo150.txt` and `sceneCategories.txt`.

    And what `tools/convert_ade20k.py` makes of them: annotations of instance and panoptic segmentation.

    Args:
        root: Existing empty folder.
        num_images: Images of 'training' and 'validation'.
        seed: Chooses the scenes.
        draw_all: `draw_all(write, count)` calls `write(index)` for all indices below count, in any order, and returns
            the list of results in the order of the indices.
    """
    scene_lines, counts = [], {}
    for split in SPLITS:
        for folder in ('images', 'annotations', INSTANCES):
            (root / folder / split).mkdir(parents=True)
        lines, pixels = zip(*draw_all(partial(write_image, root, split, seed), num_images[split]))
        scene_lines += lines
        counts[split] = np.array(pixels)
        convert_split(root, split, run_all)
    (root / 'sceneCategories.txt').write_text('\n'.join(scene_lines) + '\n', encoding='utf-8')

    pixels = np.concatenate(list(counts.values())).sum(axis=0)
    rows = ['Idx\tRatio\tTrain\tVal\tName']
    for name, value in VALUES.items():
        train, val = (np.count_nonzero(count[:, value]) for count in counts.values())
        rows.append(f'{value}\t{pixels[value] / pixels.sum():.4f}\t{train}\t{val}\t{name}')
    (root / 'objectInfo150.txt').write_text('\n'.join(rows) + '\n', encoding='utf-8')


def write_image(root: Path, split: str, seed: int, index: int) -> tuple[str, np.ndarray]:
    """Draw and write one image and its annotations.

    Returns:
        tuple[str, np.ndarray]: Its line of `sceneCategories.txt`, and the pixels of each value, (151,) int64.
    """
    scene = draw_scene(np.random.default_rng([seed, 0, list(SPLITS).index(split), index]), WEIGHTS)
    labels = label_map(scene)
    stem = SPLITS[split].format(index + 1)
    Image.fromarray(scene.image).save(root / 'images' / split / f'{stem}.jpg', quality=93)
    Image.fromarray(labels).save(root / 'annotations' / split / f'{stem}.png')
    Image.fromarray(instance_map(scene)).save(root / INSTANCES / split / f'{stem}.png')
    return f'{stem} {scene.name}', count_pixels(labels)


def label_map(scene: Scene) -> np.ndarray:
    """The annotation of a scene: (H, W) uint8, class + 1, or 0 where the object has no class."""
    labels = np.array([VALUES[name] for name in SURFACES], np.uint8)[scene.surface]
    for instance in scene.instances:
        labels[instance.mask] = VALUES.get(KINDS[instance.kind].ade, UNLABELLED)
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


def count_pixels(labels: np.ndarray) -> np.ndarray:
    """Pixels of each value of an annotation, (151,)."""
    return np.bincount(labels.ravel(), minlength=len(VALUES) + 1)


def majority_baseline(ade_root: str | Path) -> tuple[str, float]:
    """mIoU on the validation images of the most frequent class, predicted everywhere: that of a useless model.

    As mmseg's `IoUMetric` with `reduce_zero_label`: unlabelled pixels do not count, intersections and unions are
    summed over the images, and the mean is over the classes that occur.

    Args:
        ade_root: The `ADEChallengeData2016` folder.

    Returns:
        tuple[str, float]: The class's name and its mIoU in percent.
    """
    paths = (Path(ade_root) / 'annotations' / 'validation').glob('*.png')
    pixels = np.delete(sum(count_pixels(np.array(Image.open(path))) for path in paths), UNLABELLED)
    # The prediction's union with its own class is all labelled pixels; the IoU of every other class is 0.
    iou = pixels.max() / pixels.sum()
    return ADE20K_CLASSES[pixels.argmax()], float(100 * iou / np.count_nonzero(pixels))
