"""Writes the miniature ADE20K (scene parsing, 150 classes) and says what the laziest prediction reaches."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from .classes import ADE20K_CLASSES
from .objects import KINDS
from .scenes import SURFACES, Scene, draw_scene

FOLDER = 'ADEChallengeData2016'  # as the real archive unpacks
SPLITS = {'training': 'ADE_train_{:08d}', 'validation': 'ADE_val_{:08d}'}
UNLABELLED = 0
NUM_VALUES = len(ADE20K_CLASSES) + 1  # of a pixel in the annotations

# How likely each kind of object is. Umbrellas and kites have no class and stay unlabelled.
WEIGHTS = {
    'broadleaf': 1,
    'conifer': 1,
    'house': 1.5,
    'car side': 1,
    'car end': 1,
    'sailing boat': 1.5,
    'fishing boat': 1,
    'flag': 1.4,
    'ball': 1.6,
    'umbrella': 0.4,
    'kite': 0.3,
}
CROWD_CHANCE = 0.15


def write_ade20k(root: Path, num_images: dict[str, int], seed: int, draw_all: Callable) -> None:
    """Write `images/`, `annotations/`, `objectInfo150.txt` and `sceneCategories.txt`.

    Args:
        root (Path): Existing empty folder.
        num_images (dict[str, int]): Images of 'training' and 'validation'.
        seed (int): Chooses the scenes.
        draw_all (Callable): `draw_all(write, count)` calls `write(index)` for all indices below count, in any
            order, and returns the list of results in the order of the indices.
    """
    scene_lines = []
    pixels = np.zeros(NUM_VALUES, np.int64)
    images_with = {}
    for split in SPLITS:
        (root / 'images' / split).mkdir(parents=True)
        (root / 'annotations' / split).mkdir(parents=True)
        lines, counts = zip(*draw_all(partial(write_image, root, split, seed), num_images[split]))
        scene_lines += lines
        pixels += np.sum(counts, axis=0)
        images_with[split] = np.sum(np.array(counts) > 0, axis=0)

    (root / 'sceneCategories.txt').write_text('\n'.join(scene_lines) + '\n')
    rows = ['Idx\tRatio\tTrain\tVal\tName']
    for value, name in enumerate(ADE20K_CLASSES, start=1):
        ratio = pixels[value] / pixels.sum()
        rows.append(
            f'{value}\t{ratio:.4f}\t{images_with["training"][value]}\t{images_with["validation"][value]}\t{name}'
        )
    (root / 'objectInfo150.txt').write_text('\n'.join(rows) + '\n')


def write_image(root: Path, split: str, seed: int, index: int) -> tuple[str, np.ndarray]:
    """Draw and write one image and its annotation.

    Returns:
        tuple[str, np.ndarray]: Its line of `sceneCategories.txt`, and the pixels of each value, (151,) int64.
    """
    rng = np.random.default_rng([seed, 0, list(SPLITS).index(split), index])
    scene = draw_scene(rng, WEIGHTS, CROWD_CHANCE)
    labels = label_map(scene)
    stem = SPLITS[split].format(index + 1)
    Image.fromarray(scene.image).save(root / 'images' / split / f'{stem}.jpg', quality=93)
    Image.fromarray(labels).save(root / 'annotations' / split / f'{stem}.png')
    return f'{stem} {scene.name}', np.bincount(labels.ravel(), minlength=NUM_VALUES)


def label_map(scene: Scene) -> np.ndarray:
    """The annotation of a scene: (H, W) uint8, class + 1, or 0 where the object has no class."""
    values = {name: value for value, name in enumerate(ADE20K_CLASSES, start=1)}
    labels = np.array([values[name] for name in SURFACES], np.uint8)[scene.surface]
    for instance in scene.instances:
        labels[instance.mask] = values.get(KINDS[instance.kind].ade, UNLABELLED)
    return labels


def majority_baseline(ade_root: str | Path) -> tuple[str, float]:
    """What a network that has learnt nothing reaches: the most frequent class predicted everywhere.

    Follows mmseg's `IoUMetric` under `reduce_zero_label`: unlabelled pixels do not count, intersections and
    unions are summed over the validation images, and the mean is over the classes that occur.

    Args:
        ade_root (str | Path): The `ADEChallengeData2016` folder.

    Returns:
        tuple[str, float]: The class's name and its mIoU in percent.
    """
    pixels = np.zeros(NUM_VALUES, np.int64)
    for path in sorted((Path(ade_root) / 'annotations' / 'validation').glob('*.png')):
        pixels += np.bincount(np.array(Image.open(path)).ravel(), minlength=NUM_VALUES)
    pixels = np.delete(pixels, UNLABELLED)
    # The prediction's union with its own class is every labelled pixel; all other classes have IoU 0.
    iou = pixels.max() / pixels.sum()
    return ADE20K_CLASSES[pixels.argmax()], float(100 * iou / np.count_nonzero(pixels))
