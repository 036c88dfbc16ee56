"""Own data with one random defect: COCO files and folders of label maps, as a seed draws them."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image

from .own_folders import HEIGHT, WIDTH, write_coco_folder, write_mask_folder

# More than those that are looked at before a training, where a defect is in a label map that is not among them.
FEW, MANY = 6, 45
WRONG = (
    None, True, False, 0, -1, 3, 2.5, 1e300, 10**30, math.nan, math.inf, 999,
    '', 'x', '3', 'a\nb', 'a\0b', '\udce9.png', 'x' * 5000, [], [1, 2, 3], ['1', '2', '3', '4'], [None] * 4,
    [math.nan] * 4, [0, 0, 0, 0], [1000, 1000, 5, 5], [-50, 5, 9, 9], [[1, 2, 3]], [[math.nan] * 6], [['a'] * 6],
    [[1e9] * 6], {}, dict(size=[1, 1], counts=[1]), dict(size=[HEIGHT, WIDTH], counts='x'), dict(counts=None),
)  # fmt: skip


@dataclass
class Case:
    """A folder with one defect."""

    folder: Path
    names: list[str]  # one of these is in what is said of the defect
    legal: tuple[bool, bool] = (False, False)  # whether nothing need be said, by inspect-data; by a training


def file_defect(folder: Path, kinds: str, random: Random) -> Case:
    """A file that is missing, a folder, or of another content."""
    path = folder / random.choice(kinds.split())
    path = random.choice(sorted(path.iterdir())) if path.is_dir() else path
    content = path.read_bytes()
    # Pixels at the end of an image may be absent: OpenCV decodes what is there.
    contents = dict(empty=b'', text=b'no image', cut=content[: random.randrange(len(content) * 3 // 4)])
    kind = random.choice(['missing', 'folder', *contents])
    path.unlink()
    if kind == 'folder':
        path.mkdir()
    elif kind != 'missing':
        path.write_bytes(contents[kind])
    # A file that is cut may lack the last class: its labels are then out of range.
    names = [path.stem, 'label map', 'class ', 'label out of range']
    return Case(folder, names, (False, kind == 'cut' and path.parent.name == 'images'))


def value_defect(folder: Path, random: Random) -> Case:
    """Another value in place of one in the annotations, which may be legal, or none, or an entry twice."""
    path = folder / 'annotations.json'
    node = document = json.loads(path.read_text())
    key = random.choice(list(node))
    while isinstance(node[key], (dict, list)) and node[key] and random.random() < 0.8:
        node = node[key]
        key = random.choice(list(node) if isinstance(node, dict) else range(len(node)))
    kind = random.random()
    if kind < 0.1:
        del node[key]
    elif kind < 0.2 and isinstance(node, list):
        node.append(node[key])
    elif kind < 0.3:
        node[key] = str(node[key])
    else:
        node[key] = random.choice(WRONG)
    path.write_text(json.dumps(document))
    return Case(folder, [], (True, True))


def label_defect(folder: Path, random: Random) -> Case:
    """A label map with a value of no class, also beyond 8 bits, or of another shape."""
    path = random.choice(sorted((folder / 'masks').iterdir()))
    labels = np.asarray(Image.open(path))
    if random.random() < 0.5:
        labels = labels.astype(random.choice((np.uint8, np.uint16, np.int32, np.float32)))
        # Some of the wrong values have the index of a class in their lowest 8 bits.
        value = random.choice((3, 7, 254) if labels.dtype == np.uint8 else (3, 256, 257, 258, 511, 65535))
        labels[random.randrange(HEIGHT), random.randrange(HEIGHT)] = value
    else:
        colours = np.stack([labels, labels, 255 - labels], -1)
        labels = random.choice((colours, labels[:-1], labels[:1, :1], labels[:, :1]))
    # Pillow writes the last two types as TIFF alone.
    Image.fromarray(labels).save(path, 'TIFF' if labels.dtype in (np.float32, np.int32) else 'PNG')
    return Case(folder, [path.name])


def coco_case(folder: Path, seed: int) -> Case:
    """A folder with `annotations.json` and images, two objects each."""
    random = Random(seed)
    write_coco_folder(folder, range(FEW))
    if random.random() < 0.8:
        return value_defect(folder, random)
    return file_defect(folder, 'images annotations.json', random)


def mask_case(folder: Path, seed: int) -> Case:
    """A folder with `images`, `masks` and `classes.txt`."""
    random = Random(seed)
    write_mask_folder(folder, range(random.choice((FEW, FEW, FEW, MANY))))
    if random.random() < 0.5:
        return label_defect(folder, random)
    return file_defect(folder, 'images masks classes.txt', random)
