"""Own data with one random defect: COCO files and folders of label maps, as a seed draws them."""

import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 48, 40
CLASSES = ('bolt', 'nut', 'washer')
# More than those that are looked at before a training, where a defect is in a label map that is not among them.
FEW, MANY = 6, 45


@dataclass
class Case:
    """A folder with one defect.

    Attributes:
        folder: The folder.
        random: Draws everything.
        names: One of these is in what is said of the defect.
        legal: Whether nothing need be said, by inspect-data; by a training.
    """

    folder: Path
    random: Random
    names: list[str] = field(default_factory=list)
    legal: tuple[bool, bool] = (False, False)

    @property
    def image(self) -> Path:
        """A random image."""
        return self.random.choice(sorted((self.folder / 'images').iterdir()))

    @property
    def label_map(self) -> Path:
        """A random label map."""
        return self.random.choice(sorted((self.folder / 'masks').iterdir()))


def write_image(path: Path, random: Random, size: tuple[int, int] = (WIDTH, HEIGHT)) -> None:
    pixels = np.frombuffer(random.randbytes(3 * size[0] * size[1]), np.uint8).reshape(*size[::-1], 3)
    Image.fromarray(pixels).save(path)


def cut(case: Case, path: Path) -> None:
    """Keep a random part of a file, without the end of its pixels."""
    content = path.read_bytes()
    path.write_bytes(content[: case.random.randrange(len(content) * 3 // 4)])


# ----------------------------------------------------------------------------
# COCO files


def coco_document(random: Random) -> dict:
    """Annotations of `FEW` images, two objects each."""
    images = [dict(id=10 + i, file_name=f'part_{i}.png', width=WIDTH, height=HEIGHT) for i in range(FEW)]
    annotations = []
    for index in range(2 * FEW):
        x, y, width, height = (random.randrange(*bounds) for bounds in ((20,), (15,), (8, 21), (8, 21)))
        annotations.append(dict(
            id=index + 1, image_id=10 + index // 2, category_id=random.choice((2, 5, 7)), iscrowd=0,
            bbox=[x, y, width, height], area=width * height,
            segmentation=[[x, y, x + width, y, x + width, y + height, x, y + height]],
        ))  # fmt: skip
    categories = [dict(id=i, name=name, supercategory='part') for i, name in zip((2, 5, 7), CLASSES)]
    return dict(images=images, annotations=annotations, categories=categories)


WRONG = (
    None, True, False, 0, -1, 3, 2.5, 1e300, 10**30, math.nan, math.inf,
    '', ' ', 'x', '3', 'a\nb', 'a\0b', '\udce9.png', 'x' * 5000,
    [], [1], [1, 2, 3], ['1', '2', '3', '4'], [None] * 4, [math.nan] * 4, [0, 0, 0, 0], [1000, 1000, 5, 5],
    [[1, 2, 3]], [[math.nan] * 6], [['a'] * 6], [[1e9] * 6],
    {}, dict(size=[1, 1], counts=[1]), dict(size=[HEIGHT, WIDTH], counts='x'), dict(counts=None),
    dict(size=[HEIGHT, WIDTH], counts=[-1, HEIGHT * WIDTH + 1]),
)  # fmt: skip


def is_legal(key: str, name: str, old: object, value: object) -> bool:
    """Whether a value may stand in place of another: the meaning of COCO's fields, and what is made up for."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if name in ('iscrowd', 'ignore'):
        return value is None or (number and value in (0, 1) and isinstance(value, int)) or isinstance(value, bool)
    if name == 'supercategory':
        return value is None or isinstance(value, str) or (number and isinstance(value, int))
    if (key, name) == ('annotations', 'id'):  # numbered again
        return value is None or (number and isinstance(value, int)) or isinstance(value, str)
    if (key, name) == ('categories', 'name'):  # another class
        return isinstance(value, str) and value.strip() != '' and not set(value) & {'\n', '\0', '\udce9'}
    if name == 'area':
        return value is None or (number and 0 < value <= 1e12)
    if name == 'id':
        return value == old and not isinstance(value, bool)
    return False


def wrong_field(case: Case, document: dict) -> None:
    """A field of a wrong type or range, or without it."""
    key = case.random.choice(('images', 'annotations', 'annotations', 'categories'))
    entry = case.random.choice(document[key])
    name = case.random.choice(list(entry))
    old = entry.pop(name)
    if case.random.random() < 0.15:
        legal = name in ('iscrowd', 'area', 'supercategory') or (key, name) == ('annotations', 'id')
    else:
        value = case.random.choice(WRONG)
        entry[name] = value
        legal = value == old or is_legal(key, name, old, value)
    case.legal = (legal, legal)
    # A size that is another one of the image is seen where the image is read.
    if key == 'images' and name in ('width', 'height') and entry.get(name) == 3:
        case.legal = (False, True)
    if key == 'images' and name == 'file_name' and isinstance(entry.get(name), str) and '\0' not in entry[name]:
        case.legal = (False, True)
        case.names = ['annotations.json', 'images/']


def wrong_entry(case: Case, document: dict) -> None:
    """Something else in place of an entry."""
    entries = document[case.random.choice(list(document))]
    entries[case.random.randrange(len(entries))] = case.random.choice(WRONG)


def wrong_list(case: Case, document: dict) -> None:
    """Something else in place of all entries, or nothing."""
    key = case.random.choice(list(document))
    document[key] = case.random.choice((None, {}, [], 'x', 3))
    if case.random.random() < 0.3:
        del document[key]


def ids_as_strings(case: Case, document: dict) -> None:
    """Ids that are strings, and numbers that refer to them, or the other way round."""
    key, reference = case.random.choice((('images', 'image_id'), ('categories', 'category_id')))
    entries, name = case.random.choice(((document[key], 'id'), (document['annotations'], reference)))
    chosen = entries if case.random.random() < 0.7 else [case.random.choice(entries)]
    for entry in chosen:
        entry[name] = str(entry[name])


def absent_ids(case: Case, document: dict) -> None:
    """References to images or categories that are not there."""
    name = case.random.choice(('image_id', 'category_id'))
    annotations = document['annotations']
    chosen = annotations if case.random.random() < 0.3 else case.random.sample(annotations, 3)
    for entry in chosen:
        entry[name] = case.random.choice((0, 999, -3))


def ids_twice(case: Case, document: dict) -> None:
    """An entry with the id of another."""
    first, second = case.random.sample(document[case.random.choice(list(document))], 2)
    second['id'] = first['id']


def odd_box(case: Case, document: dict) -> None:
    """A box that no object can have."""
    entry = case.random.choice(document['annotations'])
    entry['bbox'] = case.random.choice(
        ([5, 5, 0, 9], [5, 5, -4, 9], [900, 5, 9, 9], [-50, 5, 9, 9], [5, 5, 0.5, 0.5], [5, 5, 9], [5, 5, 9, 9, 9])
    )


def odd_mask(case: Case, document: dict) -> None:
    """A mask that cannot be decoded."""
    entry = case.random.choice(document['annotations'])
    entry['segmentation'] = case.random.choice(
        ([[1, 2, 3, 4]], [[1, 2, 3, 4, 5, 6, 7]], [1, 2, 3, 4, 5, 6], [[]], 'x', 3, dict(size=[2, 2], counts=[4]),
         dict(size=[HEIGHT, WIDTH], counts=[7]), dict(size='x', counts=[7]), [[math.inf] * 6], [['1'] * 6], [None])
    )  # fmt: skip


def no_objects(case: Case, document: dict) -> None:
    """No annotations, or crowds alone."""
    case.names = ['nothing is labelled', 'without segmentations']
    if case.random.random() < 0.5:
        document['annotations'] = []
    for entry in document['annotations']:
        entry['iscrowd'] = 1


def name_of(name: str) -> Callable:
    def rename(case: Case, document: dict) -> None:
        """A file name that is odd, of a file that is there."""
        entry = case.random.choice(document['images'])
        os.rename(case.folder / 'images' / entry['file_name'], case.folder / 'images' / name)
        entry['file_name'] = name
        case.legal = (True, True)

    return rename


def bytes_of(case: Case, document: dict) -> bytes:
    """The file in another encoding, cut, or something else."""
    text = json.dumps(document)
    kind = case.random.choice('cut BOM UTF-16 UTF-32 Latin-1 empty noise list nested lines'.split())
    if kind in ('BOM', 'UTF-16', 'UTF-32'):
        case.legal = (True, True)
        return text.encode({'BOM': 'utf-8-sig'}.get(kind, kind))
    if kind == 'cut':
        return text.encode()[: case.random.randrange(len(text) - 1)]
    if kind == 'Latin-1':
        return json.dumps(dict(document, info='Stück'), ensure_ascii=False).encode('latin-1')
    content = dict(empty='', list='[1]', nested='[' * 100000, lines=text + '\n' + text)
    return case.random.randbytes(300) if kind == 'noise' else content[kind].encode()


def damage_image(case: Case, document: object = None) -> None:
    """An image that is missing, empty, text, a folder, of one pixel, or of another size."""
    path = case.image
    case.names = [path.name]
    kind = case.random.choice(('missing', 'empty', 'text', 'folder', 'pixel', 'size', 'cut'))
    if kind != 'cut':
        path.unlink()
    if kind == 'empty':
        path.touch()
    elif kind == 'text':
        path.write_text('no image')
    elif kind == 'folder':
        path.mkdir()
    elif kind in ('pixel', 'size'):
        write_image(path, case.random, (1, 1) if kind == 'pixel' else (WIDTH + 1, HEIGHT))
        # COCO's sizes are seen by inspect-data alone.
        case.legal = (False, (case.folder / 'annotations.json').exists() or not (case.folder / 'masks').exists())
    elif kind == 'cut':
        cut(case, path)
        case.legal = (False, True)  # OpenCV decodes what is there


COCO_DEFECTS = (
    *[wrong_field] * 6, *[wrong_entry] * 2, wrong_list, ids_as_strings, absent_ids, ids_twice, odd_box, odd_mask,
    *map(name_of, ('line\nbreak.png', 'not_utf8_\udce9.png', 'Stück.png', 'line\u2028.png')), *[bytes_of] * 2,
    no_objects, damage_image,
)  # fmt: skip


def coco_case(folder: Path, seed: int) -> Case:
    """Write a folder with `annotations.json` and images."""
    random = Random(seed)
    case = Case(folder, random)
    document = coco_document(random)
    (folder / 'images').mkdir(parents=True)
    for image in document['images']:
        write_image(folder / 'images' / image['file_name'], random)
    names = ['annotations.json', *(image['file_name'] for image in document['images'])]
    content = random.choice(COCO_DEFECTS)(case, document)
    case.names = case.names or names
    (folder / 'annotations.json').write_bytes(json.dumps(document).encode() if content is None else content)
    return case


# ----------------------------------------------------------------------------
# Folders of label maps


def draw_labels(random: Random) -> np.ndarray:
    labels = np.zeros((HEIGHT, WIDTH), np.uint8)
    labels[:10], labels[10:20], labels[20] = random.randrange(3), random.randrange(3), 255
    return labels


def wrong_values(case: Case) -> None:
    """Values of no class, also beyond 8 bits, where the lowest 8 bits are of a class."""
    path = case.label_map
    case.names = [path.name]
    labels = np.asarray(Image.open(path)).astype(case.random.choice((np.uint8, np.uint16, np.int32, np.float32)))
    value = case.random.choice((3, 7, 254) if labels.dtype == np.uint8 else (3, 256, 257, 258, 511, 65535))
    labels[case.random.randrange(HEIGHT), case.random.randrange(WIDTH)] = value
    if labels.dtype in (np.float32, np.int32):  # which Pillow writes as TIFF alone
        path.unlink()
        Image.fromarray(labels).save(path, 'TIFF')
    else:
        Image.fromarray(labels).save(path)


def wrong_kind(case: Case) -> None:
    """A label map of colours, of another size, of one pixel, or no image."""
    path = case.label_map
    case.names = [path.name]
    labels = np.asarray(Image.open(path))
    kind = case.random.choice('colours alpha size pixel column text empty cut folder JPEG'.split())
    if kind == 'cut':
        cut(case, path)
        return
    path.unlink()
    if kind == 'colours':
        Image.fromarray(np.stack([labels, labels, 255 - labels], -1)).save(path)
    elif kind == 'alpha':  # the labels are those of the grey channel
        Image.fromarray(labels).convert('LA').save(path)
        case.legal = (True, True)
    elif kind in ('size', 'pixel', 'column'):
        Image.fromarray(labels[: {'size': -1, 'pixel': 1}.get(kind), : None if kind == 'size' else 1]).save(path)
    elif kind == 'JPEG':
        Image.fromarray(np.stack([labels * 80] * 3, -1)).save(path, 'JPEG')
    elif kind == 'folder':
        path.mkdir()
    else:
        path.write_text('no image' if kind == 'text' else '')


def alone(case: Case) -> None:
    """An image without label map, or the other way round."""
    path = case.random.choice((case.image, case.label_map))
    path.unlink()
    case.names = [path.stem]


def nothing_labelled(case: Case) -> None:
    """Every pixel of every label map is 255."""
    for path in (case.folder / 'masks').iterdir():
        Image.fromarray(np.full((HEIGHT, WIDTH), 255, np.uint8)).save(path)
    case.names = ['nothing is labelled']


def wrong_classes(case: Case) -> None:
    """A file of classes that is missing, empty, in another encoding, or of other classes."""
    contents = (
        '', 'bolt\n', 'bolt\nbolt\nnut', 'St\xfcck\nb\nc'.encode('latin-1'), 'a\nb\nc'.encode('utf-16'),
        'a\nb\nc'.encode('utf-16-le'), b'\xff\xfe\x00', 'x\n' * 300, ''.join(f'c{i}\n' for i in range(256)),
    )  # fmt: skip
    content = case.random.choice(contents)
    path = case.folder / 'classes.txt'
    case.names = ['classes.txt', 'label map', 'label out of range', 'class ']
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    if content == 'bolt\n':  # of one class, if the label maps have no other
        maps = (np.asarray(Image.open(label_map)) for label_map in (case.folder / 'masks').iterdir())
        case.legal = (not any(np.isin(labels, (1, 2)).any() for labels in maps),) * 2


def wrong_palette(case: Case) -> None:
    """A palette file that cannot be read."""
    number = '9' * 5000
    lines = ('x', '1 2', '300 0 0 a', '1 2 3', '1 2 3 a\n1 2 3 b', f'{number} 1 2 a', 'a:1,2::', '1 2 3 a', '\udce9')
    content = case.random.choice(lines).encode('utf-8', 'surrogateescape')
    (case.folder / case.random.choice(('palette.txt', 'labelmap.txt'))).write_bytes(content)
    case.names = ['palette.txt', 'labelmap.txt']


def rename(case: Case) -> None:
    """File names that are odd."""
    stem = case.random.choice(('line\nbreak', 'not_utf8_\udce9', 'Stück', 'line\u2028', 'a b', '.'))
    path = case.image
    label_map = case.folder / f'masks/{path.stem}.png'
    if stem != '.':
        path.rename(path.with_stem(stem))
        label_map.rename(label_map.with_stem(stem))
    case.legal = ('\n' not in stem,) * 2
    case.names = ['line\\nbreak']


def folder_for_folder(case: Case) -> None:
    """No label maps at all, or no images."""
    name = case.random.choice(('images', 'masks'))
    shutil.rmtree(case.folder / name)
    if case.random.random() < 0.5:
        (case.folder / name).mkdir()
    case.names = [str(case.folder)]


MASK_DEFECTS = (
    *[wrong_values] * 4, *[wrong_kind] * 4, alone, nothing_labelled, *[wrong_classes] * 2, wrong_palette, rename,
    folder_for_folder, *[damage_image] * 2,
)  # fmt: skip


def mask_case(folder: Path, seed: int) -> Case:
    """Write a folder with `images`, `masks` and `classes.txt`."""
    random = Random(seed)
    case = Case(folder, random)
    number = random.choice((FEW, FEW, FEW, MANY))
    for name in ('images', 'masks'):
        (folder / name).mkdir(parents=True)
    for index in range(number):
        write_image(folder / f'images/part_{index:02d}.png', random)
        Image.fromarray(draw_labels(random)).save(folder / f'masks/part_{index:02d}.png')
    (folder / 'classes.txt').write_text('\n'.join(CLASSES))
    random.choice(MASK_DEFECTS)(case)
    return case
