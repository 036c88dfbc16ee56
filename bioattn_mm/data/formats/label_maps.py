"""Label maps: own data of segmentors, reading and checking a file, and counting the pixels of each class."""

import io
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from mmengine import fileio
from mmengine.dataset import BaseDataset
from PIL import Image, UnidentifiedImageError

from ...errors import InputError
from ...runtime.files import other_spelling
from ...runtime.paths import IMAGE_SUFFIXES, is_hidden
from ..checks import Problem
from . import folders
from .arguments import DataArguments
from .class_files import CLASSES_FILE, IGNORED, IGNORED_NAME, PALETTE_FILES, classes_and_colours
from .folders import OwnData
from .voc_files import CLASS_MAPS, SplitList, find_lists, find_root, image_folder

IMAGE_FOLDERS = ('images', 'img_dir', 'JPEGImages')
MASK_FOLDERS = ('masks', 'annotations', 'labels', 'ann_dir', 'SegmentationClass')
MASK_SUFFIX = '.png'
# Label maps that are looked at before the run starts.
NUM_CHECKED = 20


class MaskSource(NamedTuple):
    """The folders of images and of label maps of a split, and the list of its images if not all of them are its."""

    images: Path
    masks: Path
    listed: SplitList | None = None

    @property
    def places(self) -> tuple[Path, ...]:
        return self[:2] if self.listed is None else (*self[:2], self.listed.path)


def read_masks(arguments: DataArguments) -> OwnData:
    """Read data of images and label maps."""
    sources = folders.sources_of(arguments, _find_mask_folders)
    named = [Path(each) for each in (arguments.data, arguments.train_data, arguments.val_data) if each]
    # The file of classes may also be beside the folder of a split.
    places = [*(place for path in named for place in (path, path.parent)), *filter(None, map(find_root, named))]
    classes, palette, label_colours = classes_and_colours(places)
    if len(classes) > IGNORED:
        raise InputError(f'{len(classes)} classes: expected at most {IGNORED}, as the value {IGNORED} does not count')
    if len(classes) == 1:
        raise InputError(
            f'one class, {classes[0]!r}, which a segmentor cannot tell from anything: name the background as a '
            f'class, too, such as background and {classes[0]} in {CLASSES_FILE}, '
            + ('without --reduce-zero-label' if arguments.reduce_zero_label else 'and give its pixels the value 0')
        )
    used = [source.images for source in sources.values()]
    shared = {path.parent for path in used if path.parent.name in IMAGE_FOLDERS}
    own = OwnData(classes, palette, notes=[line for folder in shared for line in folders.left_over(folder, used)])
    own.notes += folders.notes_of_sources({split: source.places for split, source in sources.items()})
    for split, source in sources.items():
        names, left_out = _pairs(source)
        changes = folders.notes_of_left_out(left_out)
        if arguments.problems is not None:
            arguments.problems.extend(left_out)
        maps = [(source.masks / name).with_suffix(MASK_SUFFIX) for name in names]
        rgb = _are_colours(maps, len(classes), label_colours is not None, arguments)
        parts = {split: names}
        if split == 'train' and 'val' not in sources:
            drawn = folders.draw_val(names, source.images)
            parts = dict(train=[name for name in names if name not in drawn], val=sorted(drawn))
            changes.append(f'{len(drawn)} images drawn for validation with seed {folders.VAL_SEED}')
        for part, part_names in parts.items():
            file = folders.temporary_file(f'{part}.txt')
            file.write_bytes(''.join(f'{name}\n' for name in part_names).encode('utf-8', 'surrogateescape'))
            own.datasets[part] = dict(
                type='bioattn_mm.ImageMaskDataset',
                data_root='',
                ann_file=str(file),
                data_prefix=dict(img_path=str(source.images), seg_map_path=str(source.masks)),
                seg_map_suffix=MASK_SUFFIX,
                reduce_zero_label=arguments.reduce_zero_label,
            )
            if rgb:
                own.datasets[part]['label_colours'] = label_colours
            own.files[part] = [source.images / name for name in part_names]
            own.notes.append(f'{part}: {len(part_names)} images of {source.images}, label maps of {source.masks}')
        own.notes += [f'{source.images}: {change}' for change in changes]
    return own


def _find_mask_folders(source: Path) -> dict[str, MaskSource]:
    """The folders of images and of label maps by split; without splits those of 'train'."""
    source = find_root(source) or source
    masks = source / CLASS_MAPS
    if masks.is_dir() and (lists := find_lists(source, 'Segmentation')):
        return {
            split: MaskSource(image_folder(source), masks, listed)
            for split, listed in lists.items()
            if split != 'test' or any((masks / f'{stem}.png').is_file() for stem in listed.stems)
        }
    names = ('.', *IMAGE_FOLDERS, *MASK_FOLDERS)
    splits = {name: folders.by_split(folders.subfolders(source / name), source / name) for name in names}
    pairs = list(product(IMAGE_FOLDERS, MASK_FOLDERS))
    # A folder for images and one for label maps, each with one for each split, or a folder for each split with both,
    # or images and label maps that are of no split.
    candidates = [
        (split, f'{images}/{name}', f'{masks}/{splits[masks][split]}')
        for images, masks in pairs
        for split, name in splits[images].items()
        if split in splits[masks]
    ]
    candidates += [
        (split, f'{name}/{images}', f'{name}/{masks}')
        for images, masks in pairs
        for split, name in splits['.'].items()
    ]
    candidates += [('train', images, masks) for images, masks in pairs]
    found: dict[str, MaskSource] = {}
    for split, images, masks in candidates:
        if (source / images).is_dir() and (source / masks).is_dir():
            found.setdefault(split, MaskSource(source / images, source / masks))
    if not found:
        raise InputError(
            f'no images and label maps in {source}: looked for images/train and masks/train, train/images and '
            'train/masks, images and masks, and for other names of these folders; see docs/own_data.md'
        )
    train = found.get('train')
    for split, each in found.items():
        if train and split != 'train' and each.images.is_relative_to(train.images):
            raise InputError(
                f'{train.images} holds the images of {split}, too, in {each.images}: put those for training into '
                f'{train.images / "train"}, and their label maps into {train.masks / "train"}'
            )
    return found


def _pairs(source: MaskSource) -> tuple[list[str], list[Problem]]:
    """The images below a folder that have a label map, and the files that are left out, as they are alone."""
    images, masks, listed = source
    map_of = {name: _stem(name) + MASK_SUFFIX for name in folders.names_below(images)}
    if broken := next((name for name in map_of if '\n' in name), None):
        raise InputError(f'the name of {images / broken} has a line break: rename the file')
    maps = (path.relative_to(masks) for path in masks.rglob(f'*{MASK_SUFFIX}'))
    known = {path.as_posix() for path in maps if not is_hidden(path)}
    left_out = []
    if listed:
        map_of = {name: file for name, file in map_of.items() if _stem(name) in listed.stems}
        known = {name for name in known if _stem(name) in listed.stems}
        there = set(map(_stem, map_of))
        left_out = [listed.absent(stem, images / f'{stem}.jpg') for stem in listed.stems if stem not in there]
    paired = [name for name in map_of if map_of[name] in known]
    if not paired:
        raise InputError(
            f'no image of {images} has a label map in {masks}: expected {MASK_SUFFIX} files of the same names as the '
            f'{len(map_of)} images ({", ".join(IMAGE_SUFFIXES)})'
            + ''.join(f'; {line}' for file in [*map_of.values()][:1] if (line := other_spelling(masks / file)))
        )
    of_paired = {map_of[name] for name in paired}
    left_out += [
        Problem('image without label map', str(images / name), other_spelling(masks / map_of[name]))
        for name in map_of
        if map_of[name] not in of_paired
    ]
    left_out += [Problem('label map without image', str(masks / name)) for name in sorted(known - of_paired)]
    return paired, left_out


def _stem(name: str) -> str:
    return Path(name).with_suffix('').as_posix()


def _are_colours(paths: list[Path], num_classes: int, has_palette: bool, arguments: DataArguments) -> bool:
    """Check some label maps before a training starts, and return whether they are RGB images.

    All are checked when they are loaded. Where all problems are listed, these are not refused.
    """
    first, listed = int(arguments.reduce_zero_label), arguments.problems is not None
    values = set()
    for path in paths[:: max(1, len(paths) // NUM_CHECKED)]:
        try:
            pixels = read_label_map(path)
        except Exception as error:  # damaged files raise errors of many kinds
            if listed:
                continue
            raise InputError(f'cannot read the label map {path}: {error}') from error
        pixels = pixels if has_palette else without_channels(pixels)
        if pixels.ndim == 3 and (listed or (has_palette and not first)):
            return has_palette and not first
        if pixels.ndim == 3:
            raise InputError(
                f'{path} is a colour image: expected a {PALETTE_FILES[0]} with a line R G B NAME for each class, '
                f'{IGNORED_NAME!r} for pixels that do not count, without --reduce-zero-label, or label maps whose '
                'pixels are the indices of classes'
            )
        values.update(np.unique(pixels).tolist())
        wrong = values - {IGNORED, *range(num_classes + first)}
        if wrong and not listed:
            raise InputError(f'the label map {path} {wrong_value(max(wrong), num_classes, first)}')
    if values == {0, IGNORED} and num_classes > 1 and not first:
        raise InputError(
            f'the label maps such as {paths[0]} have the values 0 and {IGNORED} alone, and {IGNORED} does not count: '
            'expected the indices of the classes, 0 and 1'
        )
    return False


def read_label_map(path: str | Path, backend_args: dict | None = None) -> np.ndarray:
    """The values in a file: (H, W), or (H, W, C) of an image in RGB; damaged files raise errors of many kinds."""
    try:
        with Image.open(io.BytesIO(fileio.get(path, backend_args))) as image:
            return np.asarray(image)
    except UnidentifiedImageError as error:  # the message names the object
        raise ValueError('it is no image, or of a type that cannot be read') from error


def without_channels(labels: np.ndarray) -> np.ndarray:
    """A label map (H, W) of one that was saved as grey with alpha or with equal channels; of colours (H, W, 3)."""
    if labels.ndim == 3:
        labels = labels[..., : 1 if labels.shape[2] in (1, 2) else 3]
        if (labels == labels[..., :1]).all():
            return labels[..., 0]
    return labels


def count_labels(
    info: Mapping, labels: np.ndarray, num_classes: int, ignored: int
) -> tuple[np.ndarray | None, list[tuple[str, str]]]:
    """The pixels of each class in a label map with the `info` of a dataset of mmseg, (num_classes,) int64.

    None if it holds something else than labels; and what is wrong, kinds and details.
    """
    if info.get('label_colours'):
        try:
            labels = labels[..., 2::-1] if labels.ndim == 3 else labels
            labels = labels_of_colours(labels, info['label_colours'], num_classes)
        except ValueError as error:
            return None, [('label map of other colours', str(error))]
    labels = without_channels(labels)
    if labels.ndim != 2 or labels.dtype.kind not in 'bui':
        detail = f'shape {labels.shape}, {labels.dtype}: expected one integer a pixel'
        return None, [('label map of another kind', detail)]
    values, numbers = count_values(labels)
    counts, wrong = np.zeros(num_classes, np.int64), []
    first = int(bool(info.get('reduce_zero_label')))
    for value, number in zip(values.tolist(), numbers.tolist()):
        if value == ignored or 0 <= value < first:
            continue
        label = value - first
        label = (info.get('label_map') or {}).get(label, label)
        if 0 <= label < num_classes:
            counts[label] += number
        elif label != ignored:
            expected = f'{first} to {num_classes - 1 + first}, or {ignored}'
            wrong.append(('label out of range', f'{number} pixels are {value}: expected {expected}'))
    return counts, wrong


def count_values(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values that occur in integers of any shape, in ascending order, and how often each does."""
    if labels.dtype == np.uint8 and labels.size < 2**24:  # OpenCV counts in float32
        counts = cv2.calcHist([labels], [0], None, [256], [0, 256]).ravel().astype(np.int64)
    elif labels.dtype in (np.bool_, np.uint8, np.uint16):
        counts = np.bincount(labels.ravel())
    else:
        return np.unique(labels, return_counts=True)
    values = counts.nonzero()[0]
    return values, counts[values]


def counts_of(dataset: BaseDataset, index: int) -> tuple[np.ndarray | None, list[tuple[str, str]]] | None:
    """What `count_labels` says of a label map of a dataset; None if it cannot be read."""
    info = dataset.get_data_info(index)
    try:
        labels = read_label_map(info['seg_map_path'], dataset.backend_args)
    except Exception:  # damaged files raise many kinds of errors; the loader names the file
        return None
    return count_labels(info, labels, len(dataset.metainfo['classes']), dataset.ignore_index)


def labels_of_colours(pixels: np.ndarray, colours: Sequence[Sequence[int]], num_classes: int) -> np.ndarray:
    """The classes, (H, W) uint8, of a label map of colours, (H, W, 3) uint8 as mmcv decodes it: B, G, R.

    Colours are R, G and B by class; of those after the classes the pixels get 255. Others are a `ValueError`.
    """
    if pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ValueError(f'is of shape {pixels.shape}, expected an RGB image, as there is a palette file')
    codes = pixels.astype(np.int32) @ (1, 256, 65536)
    found, inverse = np.unique(codes, return_inverse=True)
    classes = {(red << 16) + (green << 8) + blue: index for index, (red, green, blue) in enumerate(colours)}
    unknown = [code for code in found.tolist() if code not in classes]
    if unknown:
        colour = ' '.join(str(unknown[0] >> shift & 255) for shift in (16, 8, 0))
        count = np.count_nonzero(codes == unknown[0])
        raise ValueError(f'has {count} pixels of the colour {colour}, which the palette file does not have')
    labels = np.array(
        [classes[code] if classes[code] < num_classes else IGNORED for code in found.tolist()], np.uint8
    )
    return labels[inverse.reshape(codes.shape)]


def check_labels(labels: np.ndarray, shape: tuple[int, int], num_classes: int | None = None, first: int = 0) -> None:
    """Check a label map, (H, W) uint8, of an image of a shape (H, W): a `ValueError` says what is wrong.

    Without a number of classes the values are not checked; `first` is the value of class 0 in the file.
    """
    if labels.shape != shape:
        raise ValueError(f'is of shape {labels.shape}, its image of {shape}')
    wrong = [] if num_classes is None else labels[(labels >= num_classes) & (labels != IGNORED)]
    if len(wrong):
        raise ValueError(wrong_value(wrong.min() + first, num_classes, first))


def wrong_value(value: int, num_classes: int | None, first: int) -> str:
    """What is said of a label map that holds a value of no class; `first` is the value of class 0 in the file."""
    if num_classes is None:
        return f'has the value {value}, expected 0 to {IGNORED}'
    return (
        f'has the value {value}, expected {first} to {num_classes - 1 + first} for {num_classes} classes, or '
        f'{IGNORED} where a pixel does not count'
    )
