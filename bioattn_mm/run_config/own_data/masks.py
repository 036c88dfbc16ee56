"""Reading own data of segmentors: images and label maps."""

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ...datasets.checks import IGNORED
from ...datasets.image_mask import list_of_names
from ...datasets.label_maps import read_label_map
from ...datasets.problem import Problem
from ...errors import InputError
from ...files import other_spelling
from ...runtime.inputs import IMAGE_SUFFIXES
from .arguments import DataArguments
from .folders import SPLITS, VAL_SEED, OwnData, draw_val, files_below, notes_of_sources, sources_of, temporary_file

IMAGE_FOLDERS = ('images', 'img_dir', 'JPEGImages')
MASK_FOLDERS = ('masks', 'annotations', 'labels', 'ann_dir', 'SegmentationClass')
MASK_SUFFIX = '.png'
CLASSES_FILE = 'classes.txt'
PALETTE_FILES = ('palette.txt', 'labelmap.txt', 'label_colors.txt')
# Colours of this name in a palette file are of pixels that do not count.
IGNORED_NAME = 'ignore'
# Kinds of problems: files that are left out.
ALONE = ('image without label map', 'label map without image')
# Label maps that are looked at before the run starts.
NUM_CHECKED = 20

Colours = list[tuple[int, int, int]]


def read_masks(arguments: DataArguments) -> OwnData:
    """Read data of images and label maps.

    Raises:
        InputError: The data are in no layout of `LAYOUTS`, or the label maps do not fit the classes.
    """
    sources = sources_of(arguments, _find_mask_folders)
    named = [Path(each) for each in (arguments.data, arguments.train_data, arguments.val_data) if each]
    # The file of classes may also be beside the folder of a split.
    places = [place for path in named for place in (path, path.parent)]
    classes, palette, label_colours = _classes_and_colours(places)
    own = OwnData(classes, palette, notes=notes_of_sources(sources))
    for split, (images, masks) in list(sources.items()):
        names, left_out = _pairs(images, masks)
        changes = _changes(left_out, len(names))
        if arguments.problems is not None:
            arguments.problems.extend(left_out)
        maps = [(masks / name).with_suffix(MASK_SUFFIX) for name in names]
        rgb = _check_masks(maps, len(classes), label_colours is not None, arguments)
        parts = {split: names}
        if split == 'train' and 'val' not in sources:
            drawn = draw_val(names, images)
            parts = dict(train=[name for name in names if name not in drawn], val=sorted(drawn))
            changes.append(f'{len(drawn)} images drawn for validation with seed {VAL_SEED}')
        for part, part_names in parts.items():
            file = temporary_file(f'{part}.txt')
            file.write_bytes(list_of_names(part_names))
            own.datasets[part] = dict(
                type='bioattn_mm.ImageMaskDataset',
                data_root='',
                ann_file=str(file),
                data_prefix=dict(img_path=str(images), seg_map_path=str(masks)),
                seg_map_suffix=MASK_SUFFIX,
                reduce_zero_label=arguments.reduce_zero_label,
            )
            if rgb:
                own.datasets[part]['label_colours'] = label_colours
            own.notes.append(f'{part}: {len(part_names)} images of {images}, label maps of {masks}')
        own.notes += [f'{images}: {change}' for change in changes]
    return own


def _find_mask_folders(source: Path) -> dict[str, tuple[Path, Path]]:
    """The folders of images and of label maps by split; without splits those of 'train'."""
    pairs = [(i, m) for i in IMAGE_FOLDERS for m in MASK_FOLDERS if i != m]
    found = {}
    for split, names in SPLITS.items():
        candidates = [(f'{i}/{name}', f'{m}/{name}') for name in names for i, m in pairs]
        candidates += [(f'{name}/{i}', f'{name}/{m}') for name in names for i, m in pairs]
        if split == 'train':
            candidates += pairs
        for images, masks in candidates:
            if split not in found and (source / images).is_dir() and (source / masks).is_dir():
                found[split] = (source / images, source / masks)
    if not found:
        raise InputError(
            f'no images and label maps in {source}: looked for images/train and masks/train, train/images and '
            'train/masks, images and masks, and for other names of these folders; see docs/own_data.md'
        )
    return found


def _pairs(images: Path, masks: Path) -> tuple[list[str], list[Problem]]:
    """The images below a folder that have a label map, and the files that are left out, as they are alone."""
    names, maps = files_below(images, IMAGE_SUFFIXES), files_below(masks, (MASK_SUFFIX,))
    of_maps = set(maps)
    paired = [name for name in names if _map_of(name) in of_maps]
    if not paired:
        raise InputError(
            f'no image of {images} has a label map in {masks}: expected {MASK_SUFFIX} files of the same names as the '
            f'{len(names)} images ({", ".join(IMAGE_SUFFIXES)})'
            + ''.join(f'; {line}' for name in names[:1] if (line := other_spelling(masks / _map_of(name))))
        )
    of_paired = set(map(_map_of, paired))
    if len(of_paired) < len(paired):
        raise InputError(
            f'{images} has images of the same name and of other types: each needs a label map of its own'
        )
    alone = [name for name in names if _map_of(name) not in of_maps]
    left_out = [Problem(ALONE[0], str(images / name), other_spelling(masks / _map_of(name))) for name in alone]
    return paired, left_out + [Problem(ALONE[1], str(masks / name)) for name in maps if name not in of_paired]


def _map_of(name: str) -> str:
    """The name of the label map of an image."""
    return Path(name).with_suffix(MASK_SUFFIX).as_posix()


def _changes(left_out: list[Problem], num_images: int) -> list[str]:
    """What is said of files that are left out."""
    lines = []
    for kind, what in zip(ALONE, ('images have no label map', 'label maps have no image')):
        files = [problem for problem in left_out if problem.kind == kind]
        if files:
            such = f'such as {Path(files[0].file).name}' + (files[0].detail and f': {files[0].detail}')
            lines.append(f'{len(files)} of {num_images + len(files)} {what} and are left out, {such}')
    return lines


def _classes_and_colours(places: Iterable[Path]) -> tuple[tuple[str, ...], Colours | None, Colours | None]:
    """Read the files of classes and colours in the first folder that has them.

    Returns:
        Names; colours of them, or None; these and then those of pixels that do not count, or None.
    """
    for place in dict.fromkeys(places):
        palette_file = next((place / name for name in PALETTE_FILES if (place / name).is_file()), None)
        classes_file = place / CLASSES_FILE
        classes = _lines(classes_file) if classes_file.is_file() else None
        if palette_file is not None:
            classes, palette, label_colours = _read_palette(palette_file, classes)
        elif classes is not None:
            palette, label_colours = None, None
        else:
            continue
        if not 1 <= len(classes) <= IGNORED:
            raise InputError(
                f'{palette_file or classes_file} names {len(classes)} classes: expected 1 to {IGNORED}, as the value '
                f'{IGNORED} does not count'
            )
        return tuple(classes), palette, label_colours
    first = next(iter(places))
    raise InputError(
        f'no names of classes: looked for {CLASSES_FILE}, one name a line, and {PALETTE_FILES[0]}, one R G B NAME a '
        f'line, in {first}'
    )


def _read_palette(path: Path, classes: list[str] | None) -> tuple[tuple[str, ...], Colours, Colours]:
    """Read a palette file.

    Args:
        path: The file.
        classes: Names in the order of their indices, if another file says them: then the lines may lack them, or
            have them in another order.

    Returns:
        As `_classes_and_colours`.
    """
    lines = [_colour(line, path) for line in _lines(path)]
    ignored = [colour for colour, name in lines if name == IGNORED_NAME]
    counted = [(colour, name) for colour, name in lines if name != IGNORED_NAME]
    colours, names = [colour for colour, _ in counted], [name for _, name in counted]
    if len(set(colours + ignored)) < len(lines):
        raise InputError(f'{path} has the same colour twice')
    if classes is None:
        if '' in names:
            raise InputError(
                f'{path} has a colour without a name: expected R G B NAME, or the names in {CLASSES_FILE}'
            )
        classes = names
    elif len(classes) != len(names):
        raise InputError(f'{path} has {len(names)} colours, {CLASSES_FILE} {len(classes)} classes: expected as many')
    elif any(names):
        absent = [name for name in classes if name not in names]
        if absent:
            raise InputError(f'{path} has no colour of {absent[0]!r}, a class of {CLASSES_FILE}')
        colours = [colours[names.index(name)] for name in classes]
    return tuple(classes), colours, colours + ignored


def _lines(path: Path) -> list[str]:
    """The lines of a file that are neither empty nor comments."""
    try:
        text = path.read_text(encoding='utf-8-sig')
    except UnicodeDecodeError as error:
        raise InputError(f'{path} is no text in UTF-8') from error
    if '\0' in text:
        raise InputError(f'{path} is no text in UTF-8')
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith('#')]


def _colour(line: str, path: Path) -> tuple[tuple[int, int, int], str]:
    """Read `R G B NAME`, with spaces or commas, or CVAT's `NAME:R,G,B::`."""
    match = re.fullmatch(r'(?P<name>[^:]+):(?P<rgb>[0-9, ]+):.*:.*', line) or re.fullmatch(
        r'(?P<rgb>[0-9]+[\s,]+[0-9]+[\s,]+[0-9]+)[\s,]*(?P<name>.*)', line
    )
    # int() refuses numbers of thousands of digits.
    rgb = tuple(int(value[-9:]) for value in re.findall('[0-9]+', match['rgb'])) if match else ()
    if len(rgb) != 3 or max(rgb) > 255:
        raise InputError(f'{path} has the line {line!r}, expected R G B NAME with three numbers of 0 to 255')
    return rgb, match['name'].strip()


def _check_masks(paths: list[Path], num_classes: int, has_palette: bool, arguments: DataArguments) -> bool:
    """Check some label maps before a training starts; all are checked when they are loaded.

    Returns:
        bool: Whether they are RGB images.

    Raises:
        InputError: They are RGB images and there is no palette file, or have other values than those of the classes.
            Where all problems are listed, single files are not refused.
    """
    reduce_zero_label, listed = arguments.reduce_zero_label, arguments.problems is not None
    kinds, values = {}, set()
    allowed = {IGNORED, *range(num_classes + reduce_zero_label)}
    for path in paths[:: max(1, len(paths) // NUM_CHECKED)]:
        try:
            pixels = read_label_map(path)
        except Exception as error:  # damaged files raise errors of many kinds
            if listed:
                continue
            raise InputError(f'cannot read the label map {path}: {error}') from error
        kinds.setdefault(pixels.ndim == 3, path)
        found = set(np.unique(pixels).tolist()) if pixels.ndim == 2 else set()
        if not found <= allowed and not listed:
            raise InputError(
                f'the label map {path} has the value {max(found - allowed)}, expected 0 to '
                f'{max(allowed - {IGNORED})} for {num_classes} classes, or {IGNORED} where a pixel does not count'
            )
        values |= found
    if listed and True in kinds and (False in kinds or not has_palette or reduce_zero_label):
        return has_palette and not reduce_zero_label
    if len(kinds) == 2:
        raise InputError(
            f'{kinds[True]} is a colour image and {kinds[False]} is not: expected label maps of one kind'
        )
    rgb = True in kinds
    if rgb and not has_palette:
        raise InputError(
            f'{kinds[True]} is a colour image: expected a {PALETTE_FILES[0]} with a line R G B NAME for each class, '
            'or label maps whose pixels are the indices of classes'
        )
    if rgb and reduce_zero_label:
        raise InputError(
            '--reduce-zero-label is for label maps whose pixels are the indices of classes, these have colours: name '
            f'those that do not count {IGNORED_NAME!r} in the palette file'
        )
    if values == {0, IGNORED} and num_classes > 1 and not reduce_zero_label:
        raise InputError(
            f'the label maps such as {paths[0]} have the values 0 and {IGNORED} alone, and {IGNORED} does not count: '
            'expected the indices of the classes, 0 and 1'
        )
    return rgb
