"""Reading own data of segmentors: images and label maps."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mmseg.datasets import PascalVOCDataset

from ...datasets.checks import IGNORED
from ...datasets.image_mask import list_of_names
from ...datasets.label_maps import read_label_map, without_channels
from ...datasets.problem import Problem
from ...errors import InputError
from ...files import other_spelling
from ...runtime.inputs import IMAGE_SUFFIXES
from .arguments import DataArguments
from .class_files import CLASSES_FILE, IGNORED_NAME, PALETTE_FILES, Colours, classes_and_colours, classes_named_in
from .folders import (
    VAL_SEED,
    OwnData,
    by_split,
    draw_val,
    files_below,
    images_below,
    left_over,
    notes_of_sources,
    sources_of,
    subfolders,
    temporary_file,
)
from .voc_layout import CLASS_MAPS, MISSING, SplitList, find_lists, find_root, image_folder
from .voc_xml import find_names

IMAGE_FOLDERS = ('images', 'img_dir', 'JPEGImages')
MASK_FOLDERS = ('masks', 'annotations', 'labels', 'ann_dir', 'SegmentationClass')
MASK_SUFFIX = '.png'
# Kinds of problems: files that are left out.
ALONE = ('image without label map', 'label map without image')
# Label maps that are looked at before the run starts.
NUM_CHECKED = 20


def read_masks(arguments: DataArguments) -> OwnData:
    """Read data of images and label maps.

    Raises:
        InputError: The data are in no layout of `LAYOUTS`, or the label maps do not fit the classes.
    """
    sources = sources_of(arguments, _find_mask_folders)
    named = [Path(each) for each in (arguments.data, arguments.train_data, arguments.val_data) if each]
    roots = [root for root in map(find_root, named) if root]
    # The file of classes may also be beside the folder of a split.
    places = [*(place for path in named for place in (path, path.parent)), *roots]
    classes, palette, label_colours = _vocs_own(places, roots) or classes_and_colours(places)
    used = [source.images for source in sources.values()]
    rest = [
        line
        for images in {path.parent for path in used if path.parent.name in IMAGE_FOLDERS}
        for line in left_over(images, used)
    ]
    if len(classes) == 1:
        raise InputError(
            f'one class, {classes[0]!r}, which a segmentor cannot tell from anything: name the background as a '
            f'class, too, such as background and {classes[0]} in {CLASSES_FILE}, '
            + ('without --reduce-zero-label' if arguments.reduce_zero_label else 'and give its pixels the value 0')
        )
    notes = [*rest, *notes_of_sources({split: source.places for split, source in sources.items()})]
    own = OwnData(classes, palette, notes=notes)
    for split, source in sources.items():
        images, masks = source.images, source.masks
        names, left_out = _pairs(source)
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
            own.files[part] = [images / name for name in part_names]
            own.notes.append(f'{part}: {len(part_names)} images of {images}, label maps of {masks}')
        own.notes += [f'{images}: {change}' for change in changes]
    return own


@dataclass(frozen=True)
class MaskSource:
    """The folders of images and of label maps of a split, and the list of its images if not all of them are its."""

    images: Path
    masks: Path
    listed: SplitList | None = None

    @property
    def places(self) -> tuple[Path, ...]:
        """What tells it from another split."""
        return (self.images, self.masks, *([self.listed.path] if self.listed else []))


def _find_mask_folders(source: Path) -> dict[str, MaskSource]:
    """The folders of images and of label maps by split; without splits those of 'train'."""
    root = find_root(source) or source
    lists = find_lists(root, 'Segmentation') if (root / CLASS_MAPS).is_dir() else {}
    if lists:
        masks = root / CLASS_MAPS
        return {
            split: MaskSource(image_folder(root), masks, listed)
            for split, listed in lists.items()
            if split != 'test' or any((masks / f'{stem}.png').is_file() for stem in listed.stems)
        }
    source = root
    pairs = [(i, m) for i in IMAGE_FOLDERS for m in MASK_FOLDERS if i != m]
    found = {}
    # A folder for images and one for label maps, each with one for each split, or a folder for each split with both.
    of_source = by_split(subfolders(source), source)
    for i, m in pairs:
        of_images, of_masks = (by_split(subfolders(source / place), source / place) for place in (i, m))
        candidates = [
            (split, source / i / of_images[split], source / m / of_masks[split])
            for split in of_images
            if split in of_masks
        ]
        candidates += [(split, source / name / i, source / name / m) for split, name in of_source.items()]
        for split, images, masks in candidates:
            if split not in found and images.is_dir() and masks.is_dir():
                found[split] = MaskSource(images, masks)
    for i, m in pairs:
        if 'train' not in found and (source / i).is_dir() and (source / m).is_dir():
            found['train'] = MaskSource(source / i, source / m)
    if not found:
        raise InputError(
            f'no images and label maps in {source}: looked for images/train and masks/train, train/images and '
            'train/masks, images and masks, and for other names of these folders; see docs/own_data.md'
        )
    for split, each in found.items():
        if 'train' in found and split != 'train' and each.images.is_relative_to(found['train'].images):
            raise InputError(
                f'{found["train"].images} holds the images of {split}, too, in {each.images}: put those for training '
                f'into {found["train"].images / "train"}, and their label maps into {found["train"].masks / "train"}'
            )
        has_maps, has_text = (any(each.masks.rglob(f'*{suffix}')) for suffix in (MASK_SUFFIX, '.txt'))
        if has_text and not has_maps:
            raise InputError(
                f"{each.masks} has text files, as YOLO's format of objects, and no label maps: a segmentor learns "
                f'these (*{MASK_SUFFIX}); take a detector, such as configs/transnext/mask_rcnn_tiny_coco.py'
            )
    return found


def _vocs_own(places: list[Path], roots: list[Path]) -> tuple[tuple[str, ...], Colours, None] | None:
    """The classes and colours of Pascal VOC itself, if no file names others and the objects of XML files are of them.

    Args:
        places: Where files may name others.
        roots: Folders of VOC's format.
    """
    if any(map(classes_named_in, places)):
        return None
    names = {name for root in roots for name in find_names(root, NUM_CHECKED)}
    classes, palette = PascalVOCDataset.METAINFO['classes'], PascalVOCDataset.METAINFO['palette']
    return (tuple(classes), list(map(tuple, palette)), None) if names and names <= set(classes) else None


def _pairs(source: MaskSource) -> tuple[list[str], list[Problem]]:
    """The images below a folder that have a label map, and the files that are left out, as they are alone."""
    images, masks = source.images, source.masks
    names = images_below(images)
    maps = files_below(masks, (MASK_SUFFIX,))
    absent = []
    if source.listed:
        listed = source.listed
        names, maps = ([name for name in of if _stem(name) in listed.stems] for of in (names, maps))
        known = set(map(_stem, names))
        absent = [listed.absent(stem, images / f'{stem}.jpg') for stem in listed.stems if stem not in known]
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
    left_out += [Problem(ALONE[1], str(masks / name)) for name in maps if name not in of_paired]
    return paired, left_out + absent


def _stem(name: str) -> str:
    return Path(name).with_suffix('').as_posix()


def _map_of(name: str) -> str:
    """The name of the label map of an image."""
    return Path(name).with_suffix(MASK_SUFFIX).as_posix()


def _changes(left_out: list[Problem], num_images: int) -> list[str]:
    """What is said of files that are left out."""
    lines = []
    whats = ('images have no label map', 'label maps have no image', 'images of the list are missing')
    for kind, what in zip((*ALONE, MISSING), whats):
        files = [problem for problem in left_out if problem.kind == kind]
        if files:
            such = f'such as {Path(files[0].file).name}' + (files[0].detail and f': {files[0].detail}')
            lines.append(f'{len(files)} of {num_images + len(files)} {what} and are left out, {such}')
    return lines


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
            pixels = pixels if has_palette else without_channels(pixels)
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
