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
    None, True, False, 0, -1, 3, 2.5, 1e300, 10**30, math.nan, math.inf, 999, [5, 5, 0, 9], [-50, 5, 9, 9],
    '', ' ', 'x', '3', 'a\nb', 'a\0b', '\udce9.png', 'x' * 5000,
    [], [1], [1, 2, 3], ['1', '2', '3', '4'], [None] * 4, [math.nan] * 4, [0, 0, 0, 0], [1000, 1000, 5, 5],
    [[1, 2, 3]], [[math.nan] * 6], [['a'] * 6], [[1e9] * 6], [['1'] * 6], [1, 2, 3, 4, 5, 6],
    {}, dict(size=[1, 1], counts=[1]), dict(size=[HEIGHT, WIDTH], counts='x'), dict(counts=None),
    dict(size=[HEIGHT, WIDTH], counts=[-1, HEIGHT * WIDTH + 1]), dict(size=[HEIGHT, WIDTH], counts=[7]),
)  # fmt: skip


@dataclass
class Case:
    """A folder with one defect.

    Attributes:
        folder: The folder.
        names: One of these is in what is said of the defect.
        legal: Whether nothing need be said, by inspect-data; by a training.
    """

    folder: Path
    names: list[str]
    legal: tuple[bool, bool] = (False, False)


def any_file(folder: Path, kinds: str, random: Random) -> Path:
    """One of the files of a kind, a folder or a file."""
    path = folder / random.choice(kinds.split())
    return random.choice(sorted(path.iterdir())) if path.is_dir() else path


def file_defect(folder: Path, kinds: str, random: Random) -> Case:
    """A file that is missing, a folder, or of another content."""
    path = any_file(folder, kinds, random)
    content = path.read_bytes()
    # Pixels at the end of an image may be absent: OpenCV decodes what is there.
    contents = dict(
        empty=b'', text=b'no image', noise=random.randbytes(300),
        cut=content[: random.randrange(len(content) * 3 // 4)],
    )  # fmt: skip
    kind = random.choice(['missing', 'folder', *contents])
    path.unlink()
    if kind == 'folder':
        path.mkdir()
    elif kind != 'missing':
        path.write_bytes(contents[kind])
    return Case(folder, [path.stem, 'label map', 'class '], (False, kind == 'cut' and path.parent.name == 'images'))


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


def name_defect(folder: Path, random: Random) -> Case:
    """An odd name of an image that is there."""
    path = any_file(folder, 'images', random)
    new = path.with_stem(random.choice(('line\nbreak', 'not_utf8_\udce9', 'Stück', 'line\u2028', 'a b')))
    path.rename(new)
    is_legal = True
    if (annotations := folder / 'annotations.json').is_file():
        annotations.write_text(annotations.read_text().replace(path.name, json.dumps(new.name)[1:-1]))
    else:
        (folder / f'masks/{path.stem}.png').rename(folder / f'masks/{new.stem}.png')
        is_legal = '\n' not in new.name
    return Case(folder, ['line\\nbreak'], (is_legal, is_legal))


def encoding_defect(path: Path, random: Random) -> Case:
    """A text in another encoding, which readers of JSON see."""
    encoding = random.choice(('utf-8-sig', 'utf-16', 'utf-32', 'utf-16-le'))
    path.write_bytes(path.read_text().encode(encoding))
    is_legal = encoding == 'utf-8-sig' or path.suffix == '.json'
    return Case(path.parent, [path.stem], (is_legal, is_legal))


def label_defect(folder: Path, random: Random) -> Case:
    """A label map with a value of no class, also beyond 8 bits, or of another shape."""
    path = any_file(folder, 'masks', random)
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


def palette_defect(folder: Path, random: Random) -> Case:
    """A palette file that cannot be read."""
    content = random.choice((f'{"9" * 5000} 1 2 a', 'a:1,2::', '1 2 3 a', '\udce9'))
    path = folder / random.choice(('palette.txt', 'labelmap.txt'))
    path.write_bytes(content.encode('utf-8', 'surrogateescape'))
    return Case(folder, [path.name, 'palette file'])


def coco_case(folder: Path, seed: int) -> Case:
    """A folder with `annotations.json` and images, two objects each."""
    random, path = Random(seed), write_coco_folder(folder, range(FEW)) / 'annotations.json'
    return random.choice((
        *[lambda: value_defect(folder, random)] * 5, lambda: file_defect(folder, 'images annotations.json', random),
        lambda: name_defect(folder, random), lambda: encoding_defect(path, random),
    ))()  # fmt: skip


def mask_case(folder: Path, seed: int) -> Case:
    """A folder with `images`, `masks` and `classes.txt`."""
    random = Random(seed)
    write_mask_folder(folder, range(random.choice((FEW, FEW, FEW, MANY))))
    return random.choice((
        *[lambda: label_defect(folder, random)] * 4, lambda: palette_defect(folder, random),
        *[lambda: file_defect(folder, 'images masks classes.txt', random)] * 3,
        lambda: name_defect(folder, random), lambda: encoding_defect(folder / 'classes.txt', random),
    ))()  # fmt: skip
