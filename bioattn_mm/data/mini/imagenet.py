"""Writes the miniature ImageNet: images of single objects in the folders of their classes, and `meta/*.txt`."""

from pathlib import Path

import numpy as np

from ..class_names import IMAGENET_CLASSES
from .objects import KINDS
from .scenes import draw_single, save

# Names of the files, of the WordNet ID and the number of an image, counted from 1.
SPLITS = {'train': '{wnid}_{number}.JPEG', 'val': 'ILSVRC2012_val_{number:08d}.JPEG'}
DRAWN = [kind for kind, what in KINDS.items() if what.imagenet]


def write_image(root: Path, split: str, seed: int, index: int) -> str:
    """Draw and write one image; returns its line of `meta/*.txt`: its path in the folder of the split, its label."""
    kind = DRAWN[index % len(DRAWN)]  # the classes take turns
    wnid, label = IMAGENET_CLASSES[KINDS[kind].imagenet]
    scene = draw_single(np.random.default_rng([seed, 2, list(SPLITS).index(split), index]), kind)
    path = f'{wnid}/{SPLITS[split].format(wnid=wnid, number=index + 1)}'
    save(scene.image, root / split / path)
    return f'{path} {label}'


def write_annotations(root: Path, split: str, lines: list[str]) -> None:
    """Write the label of each image, which is the one of all 1000 classes."""
    (root / 'meta').mkdir(exist_ok=True)
    (root / 'meta' / f'{split}.txt').write_text('\n'.join(sorted(lines)) + '\n', encoding='utf-8')
