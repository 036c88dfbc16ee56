"""Writes the miniature ImageNet: images of single objects in the folders of their classes, and `meta/*.txt`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from ..class_names import IMAGENET_CLASSES
from .objects import KINDS
from .scenes import draw_single

FOLDER = 'imagenet'
# Names of the files, of the WordNet ID and the number of an image, counted from 1.
SPLITS = {'train': '{wnid}_{number}.JPEG', 'val': 'ILSVRC2012_val_{number:08d}.JPEG'}
DRAWN = [kind for kind, what in KINDS.items() if what.imagenet]


def write_imagenet(root: Path, num_images: dict[str, int], seed: int, draw_all: Callable) -> None:
    """Write `train/`, `val/`, and in `meta/` the label of each image, which is the one of all 1000 classes.

    Args:
        root: Existing empty folder.
        num_images: Images of 'train' and 'val'; the classes take turns.
        seed: Chooses the images.
        draw_all: `draw_all(write, count)` calls `write(index)` for all indices below count, in any order, and returns
            the list of results in the order of the indices.
    """
    (root / 'meta').mkdir()
    for split in SPLITS:
        for kind in DRAWN:
            (root / split / IMAGENET_CLASSES[KINDS[kind].imagenet][0]).mkdir(parents=True)
        lines = draw_all(partial(write_image, root, split, seed), num_images[split])
        (root / 'meta' / f'{split}.txt').write_text('\n'.join(sorted(lines)) + '\n', encoding='utf-8')


def write_image(root: Path, split: str, seed: int, index: int) -> str:
    """Draw and write one image; returns its line of `meta/*.txt`: its path in the folder of the split, its label."""
    kind = DRAWN[index % len(DRAWN)]
    wnid, label = IMAGENET_CLASSES[KINDS[kind].imagenet]
    scene = draw_single(np.random.default_rng([seed, 2, list(SPLITS).index(split), index]), kind)
    path = f'{wnid}/{SPLITS[split].format(wnid=wnid, number=index + 1)}'
    Image.fromarray(scene.image).save(root / split / path, quality=93)
    return f'{path} {label}'
