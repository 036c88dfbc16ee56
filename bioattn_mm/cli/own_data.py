"""Training, testing and looking at own data: reads a folder, and sets its images and classes in a config."""

import argparse
import atexit
import json
import random
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from mmengine.config import Config
from PIL import Image

from ..datasets.transforms import IGNORED
from ..errors import InputError
from ..files import atomic_write
from .classes import DATALOADERS, EVALUATORS, leaf_dataset_configs, set_classes
from .pipelines import find_dicts

LAYOUTS = """\
For a detector, annotations in COCO's format, one JSON file for each of train, val and test, in any of these places;
train, val (or valid, validation) and test are words in the name of the file or of its folder:

  DIR/annotations/instances_train.json     images in DIR/train, DIR/images/train, DIR/images or DIR
  DIR/train.json or DIR/train/*.json       the same, or beside the JSON (Roboflow: DIR/train/_annotations.coco.json)
  DIR/annotations.json or a JSON as DIR    a single one, whatever its name: training images

For a segmentor, images of any type and label maps (PNG) of the same name; the folder of the label maps is named
masks, annotations, labels, ann_dir or SegmentationClass, that of the images images, img_dir or JPEGImages:

  DIR/images/train, DIR/masks/train        and val, test in place of train
  DIR/train/images, DIR/train/masks        the same
  DIR/images, DIR/masks                    training images

A pixel's value in a label map is the index of its class, 0 for the first, or 255 where it does not count. The names
are in DIR/classes.txt, one a line. With DIR/palette.txt (or labelmap.txt, label_colors.txt), one R G B NAME a line,
label maps may also be RGB images; the colours named "ignore" do not count, and classes.txt is not needed.
"""

SPLITS = dict(train=('train', 'training'), val=('val', 'valid', 'validation'), test=('test', 'testing'))
IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp')
IMAGE_FOLDERS = ('images', 'img_dir', 'JPEGImages')
MASK_FOLDERS = ('masks', 'annotations', 'labels', 'ann_dir', 'SegmentationClass')
MASK_SUFFIX = '.png'
CLASSES_FILE = 'classes.txt'
PALETTE_FILES = ('palette.txt', 'labelmap.txt', 'label_colors.txt')
# Colours of this name in a palette file are of pixels that do not count.
IGNORED_NAME = 'ignore'
# Other files that the real COCO has beside its instances.
OTHER_COCO_FILES = ('captions', 'person_keypoints', 'panoptic', 'stuff', 'image_info')
# JSON files in a folder that are read to find those in COCO's format.
MAX_JSON_FILES = 20
# Images or label maps that are looked at before the run starts.
NUM_CHECKED = 20

# Where there are no validation images, this part of the training images, drawn with this seed.
VAL_FRACTION = 0.1
VAL_SEED = 0

# What stays of the config's own datasets.
KEPT_OF_DATASET = ('pipeline', 'filter_cfg', 'test_mode', 'serialize_data', 'max_refetch')
DATA_FOLDER = 'data'  # in a work dir


@dataclass(frozen=True)
class DataArguments:
    """What the command line says of own data (see `ToolParser.add_data`).

    Attributes:
        data: Folder, or JSON file of COCO's format; its layouts are those of `LAYOUTS`.
        train_data: The training images alone, in place of those of `data`.
        val_data: The validation images alone, in place of those of `data`.
        reduce_zero_label: Whether 0 in a label map does not count, and class i is i + 1.
    """

    data: str | None = None
    train_data: str | None = None
    val_data: str | None = None
    reduce_zero_label: bool = False

    @property
    def name(self) -> str:
        """Short name of the data, for a work dir."""
        return Path(self.train_data or self.data or self.val_data).resolve().stem


def data_arguments(args: argparse.Namespace) -> DataArguments | None:
    """The arguments of `ToolParser.add_data`; None if there are none."""
    arguments = DataArguments(args.data, args.train_data, args.val_data, args.reduce_zero_label)
    if args.data or args.train_data or args.val_data:
        return arguments
    if args.reduce_zero_label:
        raise InputError('--reduce-zero-label is for own data: name them with --data')
    return None


@dataclass
class OwnData:
    """The data of a folder as datasets of mmdet or mmseg.

    Attributes:
        classes: Names in the order of their indices.
        palette: R, G and B of each class in 0 to 255; None if the folder says nothing about them.
        datasets: Config of the dataset by split ('train', 'val', 'test'), without pipeline.
        notes: What was found and done, one line each, for the log.
    """

    classes: tuple[str, ...]
    palette: list[tuple[int, int, int]] | None = None
    datasets: dict[str, dict] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def use_own_data(config: Config, arguments: DataArguments) -> OwnData:
    """Let a config of a detector or segmentor train, validate and test on own data.

    The folder is only read. What the datasets need beyond it, such as the list of validation images where they are
    drawn at random, is written to a temporary folder, which is removed when the process ends; `keep_data_files` moves
    it to a work dir.

    Args:
        config: Changed in place: datasets, evaluators, classes everywhere (see `set_classes`), the learning rate in
            proportion to the batch, and `own_data`, lines for the log.
        arguments: Where the data are.

    Returns:
        OwnData: What was found.

    Raises:
        InputError: The data are in no layout of `LAYOUTS`, or do not fit the model.
    """
    if config.default_scope == 'mmdet':
        with_mask = any(step.get('with_mask') for step in find_dicts(config.get('train_dataloader')))
        own = read_coco(arguments, with_mask)
    elif config.default_scope == 'mmseg':
        own = read_masks(arguments)
    else:
        raise InputError(
            f'own data are for detectors and segmentors, {config.filename} is a config of {config.default_scope}'
        )
    for key, split in zip(DATALOADERS, ('train', 'val', 'test')):
        dataset = own.datasets.get(split) or (own.datasets.get('val') if split == 'test' else None)
        if dataset and config.get(key):
            config[key].dataset = _with_dataset(config[key].dataset, dataset)
    for step in find_dicts(config):
        if str(step.get('type')).endswith('LoadAnnotations'):
            step.pop('reduce_zero_label', None)  # the dataset says it
    _set_evaluators(config, own)
    set_classes(config, own.classes, own.palette)
    if config.get('auto_scale_lr'):
        config.auto_scale_lr.enable = True
    number = f'{len(own.classes)} classes: {", ".join(own.classes)}'
    config.own_data = [number, *own.notes]
    return own


def keep_data_files(config: Config, work_dir: str) -> None:
    """Move the files that `use_own_data` wrote for a config to its work dir, and name them there in the config."""
    folder = Path(work_dir) / DATA_FOLDER
    kept = set()
    for node in find_dicts(config):
        for key, value in node.items():
            if not isinstance(value, str) or not _is_temporary(Path(value)):
                continue
            path, new_path = Path(value), folder / Path(value).name
            if path not in kept:
                folder.mkdir(parents=True, exist_ok=True)
                with atomic_write(new_path) as file:
                    file.write(path.read_bytes())
                kept.add(path)
            node[key] = str(new_path)


def check_classes(path: str, checkpoint: dict, config: Config) -> None:
    """Raise an `InputError` if a checkpoint was trained on other classes than those of a config, in number or name.

    Args:
        path: The checkpoint's file, for the message.
        checkpoint: Its content; without `dataset_meta` nothing is known of its classes.
        config: A config of which `use_own_data` has set the classes.
    """
    trained = ((checkpoint.get('meta') or {}).get('dataset_meta') or {}).get('classes')
    classes = next(leaf_dataset_configs(config.test_dataloader.dataset)).metainfo['classes']
    if trained is not None and tuple(trained) != tuple(classes):
        raise InputError(
            f'{path} was trained on the classes {", ".join(trained)}, the data have {", ".join(classes)}: expected '
            'the same names in the same order'
        )


def _with_dataset(node: object, dataset: dict) -> dict:
    """A dataset config with other data; wrappers other than those that repeat or join datasets stay."""
    if isinstance(node, (list, tuple)):
        return _with_dataset(node[0], dataset)
    if 'datasets' in node:
        return _with_dataset(node['datasets'], dataset)
    if 'dataset' in node:
        inner = _with_dataset(node['dataset'], dataset)
        return inner if node['type'] in ('RepeatDataset', 'ConcatDataset') else {**node, 'dataset': inner}
    return {**{key: node[key] for key in KEPT_OF_DATASET if key in node}, **dataset}


def _set_evaluators(config: Config, own: OwnData) -> None:
    """Let the evaluators read the data; those of other datasets become those of COCO or of mmseg."""
    for key, splits in zip(EVALUATORS, (('val',), ('test', 'val'))):
        dataset = next((own.datasets[split] for split in splits if split in own.datasets), None)
        if dataset is None or not config.get(key):
            continue
        evaluators = config[key] if isinstance(config[key], list) else [config[key]]
        kind, default = (
            ('CocoMetric', dict(metric='bbox'))
            if config.default_scope == 'mmdet'
            else ('IoUMetric', dict(iou_metrics=['mIoU']))
        )
        kept = [evaluator for evaluator in evaluators if evaluator['type'].split('.')[-1] == kind]
        if not kept:
            kept = [dict(type=kind, **default)]
            checkpoints = config.get('default_hooks', {}).get('checkpoint', {})
            if checkpoints.get('save_best'):
                checkpoints.save_best = 'auto'
        if kind == 'CocoMetric':
            kept = [{**evaluator, 'ann_file': dataset['ann_file']} for evaluator in kept]
        config[key] = kept if isinstance(config[key], list) else kept[0]


# ----------------------------------------------------------------------------
# Detectors: COCO's format


def read_coco(arguments: DataArguments, with_mask: bool) -> OwnData:
    """Read data in COCO's format.

    Args:
        arguments: Where they are.
        with_mask: Whether the model learns masks.

    Raises:
        InputError: The data are in no layout of `LAYOUTS`, cannot be read, or have no masks for a model of masks.
    """
    if arguments.reduce_zero_label:
        raise InputError('--reduce-zero-label is for label maps: a detector has none')
    sources = _sources(arguments, _find_coco_files)
    contents = {split: _read_coco_file(path) for split, path in sources.items()}
    if 'test' in contents and not contents['test']['annotations']:
        del contents['test'], sources['test']
    first = next(iter(contents))  # the training data, if there are any
    classes, notes = _class_names(contents[first], sources[first])
    own = OwnData(classes, notes=notes)
    for split, path in list(sources.items()):
        content, changes = _complete(contents[split], path, classes)
        images = _find_image_folder(path, content['images'], split)
        parts = {split: content}
        if split == 'train' and 'val' not in sources:
            parts = _split_coco(content, path)
            changes.append(f'{len(parts["val"]["images"])} images drawn for validation with seed {VAL_SEED}')
        if with_mask and split != 'test' and not any(each.get('segmentation') for each in content['annotations']):
            raise InputError(
                f'{path} has boxes without segmentations, and this model learns masks: take a config that detects '
                'boxes, such as configs/transnext/dino_4scale_tiny_coco.py'
            )
        for part, part_content in parts.items():
            file = _write(f'{part}.json', json.dumps(part_content)) if changes else path
            own.datasets[part] = dict(
                type='CocoDataset', data_root='', ann_file=str(file), data_prefix=dict(img=str(images))
            )
            own.notes.append(f'{part}: {len(part_content["images"])} images of {images}, annotations of {path}')
        own.notes += [f'{path}: {change}' for change in changes]
    return own


def _find_coco_files(source: Path) -> dict[str, Path]:
    """The files of COCO's format by split; a file of no known split is that of 'train'."""
    if source.is_file():
        return {'train': source}
    patterns = ('*.json', 'annotations/*.json', '*/*.json', '*/annotations/*.json')
    paths = dict.fromkeys(path for pattern in patterns for path in sorted(source.glob(pattern)))
    paths = [path for path in paths if path.is_file() and not path.name.startswith(OTHER_COCO_FILES)]
    if len(paths) > MAX_JSON_FILES:
        raise InputError(
            f'{source} has {len(paths)} JSON files, expected one for each of train, val and test: name them with '
            '--train-data and --val-data'
        )
    found: dict[str, list[Path]] = {}
    for path in paths:
        found.setdefault(_split_of(path.relative_to(source)), []).append(path)
    # Files that are named as a split are read later, and only once, as those of the real COCO are large.
    found = {
        split: [path for path in files if (split and len(files) == 1) or _is_coco_file(path)]
        for split, files in found.items()
    }
    found = {split: files for split, files in found.items() if files}
    if not found:
        raise InputError(
            f"no annotations in COCO's format in {source}: looked for {', '.join(patterns)}, each with images, "
            'annotations and categories; see docs/own_data.md'
        )
    for split, files in found.items():
        if len(files) > 1:
            instances = [path for path in files if path.name.startswith('instances')]
            if len(instances) != 1:
                names = ', '.join(str(path.relative_to(source)) for path in files[:3])
                raise InputError(
                    f'{source} has {len(files)} files of annotations for {split or "training"}: {names}; name one '
                    'with --train-data or --val-data'
                )
            found[split] = instances
    unnamed = found.pop('', None)
    if unnamed and 'train' not in found:
        found['train'] = unnamed
    return {split: found[split][0] for split in SPLITS if split in found}


def _split_of(path: Path) -> str:
    """The split that a file name says, else the folder nearest to it, else ''."""
    for part in (path.stem, *reversed(path.parts[:-1])):
        words = set(re.split(r'[^a-z]+', part.lower()))
        for split, names in SPLITS.items():
            if words & set(names):
                return split
    return ''


def _is_coco_file(path: Path) -> bool:
    try:
        _read_coco_file(path)
    except InputError:
        return False
    return True


def _read_coco_file(path: Path) -> dict:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f'{path} is no JSON file: {error}') from error
    absent = [
        key
        for key in ('images', 'annotations', 'categories')
        if not isinstance(content, dict) or not isinstance(content.get(key), list)
    ]
    if absent:
        raise InputError(f"{path} is not in COCO's format: it has no list of {' and no list of '.join(absent)}")
    return content


def _class_names(content: dict, path: Path) -> tuple[tuple[str, ...], list[str]]:
    """The classes of a COCO file in their order, and notes.

    Roboflow writes a category without annotations that the others name as their supercategory: it is left out.
    """
    used = {each.get('category_id') for each in content['annotations']}
    groups = {category.get('supercategory') for category in content['categories']}
    classes, notes = [], []
    for category in content['categories']:
        if category['name'] in groups and category['id'] not in used and len(content['categories']) > 1:
            notes.append(f'{path}: the category {category["name"]!r} is a group of others and is left out')
        else:
            classes.append(category['name'])
    if not classes:
        raise InputError(f'{path} has no categories: expected the names of the classes')
    return tuple(classes), notes


def _complete(content: dict, path: Path, classes: tuple[str, ...]) -> tuple[dict, list[str]]:
    """Bring a COCO file to what mmdet and pycocotools expect of it.

    Returns:
        The content, and what was changed.

    Raises:
        InputError: Something is missing that cannot be made up for.
    """
    for key, required in dict(images=('id', 'file_name', 'height', 'width'), categories=('id', 'name')).items():
        for entry in content[key]:
            absent = [name for name in required if name not in entry]
            if absent:
                raise InputError(f'{path}: an entry of {key} has no {absent[0]}: {json.dumps(entry)[:100]}')
    if not content['images']:
        raise InputError(f'{path} has no images')
    changes = []
    annotations = content['annotations']
    for index, each in enumerate(annotations):
        absent = [name for name in ('image_id', 'category_id', 'bbox') if name not in each]
        if absent:
            raise InputError(f'{path}: annotation {index} has no {absent[0]}')
    if any('area' not in each or 'iscrowd' not in each for each in annotations):
        changes.append('area (of the box) or iscrowd (0) was added where annotations have none')
        annotations = [dict(area=each['bbox'][2] * each['bbox'][3], iscrowd=0) | each for each in annotations]
    if len({each.get('id') for each in annotations}) < len(annotations):
        changes.append('annotations were numbered, as not each had an id of its own')
        annotations = [{**each, 'id': index} for index, each in enumerate(annotations, start=1)]
    names = [category['name'] for category in content['categories']]
    unknown = [name for name in classes if names.count(name) != 1]
    other = [name for name in names if name not in classes]
    used = {each['category_id'] for each in annotations}
    if unknown:
        raise InputError(
            f'{path} has {names.count(unknown[0])} categories {unknown[0]!r}, expected one: all files of annotations '
            'must have the same categories'
        )
    for category in content['categories']:
        if category['name'] in other and category['id'] in used:
            raise InputError(
                f'{path} has annotations of {category["name"]!r}, which is no class of the training data'
            )
    # mmdet numbers the classes as they come in the file.
    if [name for name in names if name in classes] != list(classes):
        changes.append('categories were brought into the order of the training data')
    categories = sorted(
        (category for category in content['categories'] if category['name'] in classes),
        key=lambda category: classes.index(category['name']),
    )
    return {**content, 'annotations': annotations, 'categories': categories}, changes


def _find_image_folder(path: Path, images: list[dict], split: str) -> Path:
    """The folder from which the file names of a COCO file lead to images.

    It is looked for beside the file and up to two folders below the one above it. Where several hold files of the
    first names, it is the one that is named as the split, else the nearest to the file.
    """
    root = (
        path.parent.parent if _split_of(Path(path.parent.name)) or path.parent.name == 'annotations' else path.parent
    )
    folders = [path.parent, *(folder for top in {path.parent, root} for folder in (top, *_folders(top)))]
    names = [image['file_name'] for image in images[:NUM_CHECKED]]

    def rating(folder: Path) -> tuple[int, bool, bool, int]:
        hits = sum((folder / name).is_file() for name in names)
        inside = folder.relative_to(root) if folder.is_relative_to(root) else Path()
        return hits, _split_of(inside / 'x') == split, folder == path.parent, -len(folder.parts)

    best = max(dict.fromkeys(folders), key=rating)
    if rating(best)[0] == 0:
        tried = ', '.join(str(folder) for folder in list(dict.fromkeys(folders))[:4])
        raise InputError(f'{path} names the image {names[0]}, which is in none of the folders {tried}')
    return best


def _folders(top: Path) -> Iterator[Path]:
    """The folders up to two below another."""
    for pattern in ('*/', '*/*/'):
        yield from sorted(path for path in top.glob(pattern) if path.is_dir())


def _split_coco(content: dict, path: Path) -> dict[str, dict]:
    """Draw validation images at random."""
    drawn = _draw_val([image['file_name'] for image in content['images']], path)
    parts = {}
    for part in ('train', 'val'):
        images = [image for image in content['images'] if (image['file_name'] in drawn) == (part == 'val')]
        ids = {image['id'] for image in images}
        annotations = [each for each in content['annotations'] if each['image_id'] in ids]
        parts[part] = {**content, 'images': images, 'annotations': annotations}
    return parts


# ----------------------------------------------------------------------------
# Segmentors: images and label maps


def read_masks(arguments: DataArguments) -> OwnData:
    """Read data of images and label maps.

    Raises:
        InputError: The data are in no layout of `LAYOUTS`, or the label maps do not fit the classes.
    """
    sources = _sources(arguments, _find_mask_folders)
    named = [Path(each) for each in (arguments.data, arguments.train_data, arguments.val_data) if each]
    # The file of classes may also be beside the folder of a split.
    places = [place for path in named for place in (path, path.parent)]
    classes, palette, label_colours = _classes_and_colours(places)
    own = OwnData(classes, palette)
    for split, (images, masks) in list(sources.items()):
        names, changes = _pairs(images, masks)
        maps = [(masks / name).with_suffix(MASK_SUFFIX) for name in names]
        rgb = _check_masks(maps, len(classes), label_colours is not None, arguments.reduce_zero_label)
        parts = {split: names}
        if split == 'train' and 'val' not in sources:
            drawn = _draw_val(names, images)
            parts = dict(train=[name for name in names if name not in drawn], val=sorted(drawn))
            changes.append(f'{len(drawn)} images drawn for validation with seed {VAL_SEED}')
        for part, part_names in parts.items():
            own.datasets[part] = dict(
                type='bioattn_mm.ImageMaskDataset',
                data_root='',
                ann_file=str(_write(f'{part}.txt', '\n'.join(part_names) + '\n')),
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


def _pairs(images: Path, masks: Path) -> tuple[list[str], list[str]]:
    """The images below a folder that have a label map, and what is to be said of the others."""
    names = sorted(
        path.relative_to(images).as_posix()
        for path in images.rglob('*')
        if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith('.')
    )
    paired = [name for name in names if (masks / name).with_suffix(MASK_SUFFIX).is_file()]
    if not paired:
        raise InputError(
            f'no image of {images} has a label map in {masks}: expected {MASK_SUFFIX} files of the same names as the '
            f'{len(names)} images ({", ".join(IMAGE_SUFFIXES)})'
        )
    stems = {str(Path(name).with_suffix('')) for name in paired}
    if len(stems) < len(paired):
        raise InputError(
            f'{images} has images of the same name and of other types: each needs a label map of its own'
        )
    if len(paired) == len(names):
        return paired, []
    missing = next(name for name in names if name not in set(paired))
    return paired, [
        f'{len(names) - len(paired)} of {len(names)} images have no label map and are left out, such as {missing}'
    ]


def _classes_and_colours(
    places: Iterable[Path],
) -> tuple[tuple[str, ...], list[tuple[int, int, int]] | None, list[tuple[int, int, int]] | None]:
    """Read the files of classes and colours in the first folder that has them.

    Returns:
        Names; colours of them, or None; these and then those of pixels that do not count, or None.
    """
    for place in dict.fromkeys(places):
        palette_file = next((place / name for name in PALETTE_FILES if (place / name).is_file()), None)
        classes_file = place / CLASSES_FILE
        if not classes_file.is_file() and palette_file is None:
            continue
        names = _lines(classes_file) if classes_file.is_file() else None
        if palette_file is None:
            return tuple(names), None, None
        colours = [_colour(line, palette_file) for line in _lines(palette_file)]
        own_names = [name for _, name in colours]
        if names is None:
            if '' in own_names:
                raise InputError(
                    f'{palette_file} has a colour without a name: expected R G B NAME, or the names in {classes_file}'
                )
            names = [name for name in own_names if name != IGNORED_NAME]
        counted = [colour for colour, name in colours if name != IGNORED_NAME]
        ignored = [colour for colour, name in colours if name == IGNORED_NAME]
        if len(counted) != len(names):
            raise InputError(
                f'{palette_file} has {len(counted)} colours, {classes_file} {len(names)} classes: expected as many'
            )
        if len(set(counted + ignored)) < len(colours):
            raise InputError(f'{palette_file} has the same colour twice')
        return tuple(names), counted, counted + ignored
    first = next(iter(places))
    raise InputError(
        f'no names of classes: looked for {CLASSES_FILE}, one name a line, and {PALETTE_FILES[0]}, one R G B NAME a '
        f'line, in {first}'
    )


def _lines(path: Path) -> list[str]:
    """The lines of a file that are neither empty nor comments."""
    try:
        lines = [line.strip() for line in path.read_text(encoding='utf-8-sig').splitlines()]
    except UnicodeDecodeError as error:
        raise InputError(f'{path} is no text in UTF-8') from error
    return [line for line in lines if line and not line.startswith('#')]


def _colour(line: str, path: Path) -> tuple[tuple[int, int, int], str]:
    """Read `R G B NAME`, with spaces or commas, or CVAT's `NAME:R,G,B::`."""
    match = re.fullmatch(r'(?P<name>[^:]+):(?P<rgb>[\d, ]+):.*:.*', line) or re.fullmatch(
        r'(?P<rgb>\d+[\s,]+\d+[\s,]+\d+)[\s,]*(?P<name>.*)', line
    )
    rgb = tuple(int(value) for value in re.findall(r'\d+', match['rgb'])) if match else ()
    if len(rgb) != 3 or max(rgb) > 255:
        raise InputError(f'{path} has the line {line!r}, expected R G B NAME with three numbers of 0 to 255')
    return rgb, match['name'].strip()


def _check_masks(paths: list[Path], num_classes: int, has_palette: bool, reduce_zero_label: bool) -> bool:
    """Check some label maps before a training starts; all are checked when they are loaded.

    Returns:
        bool: Whether they are RGB images.

    Raises:
        InputError: They are RGB images and there is no palette file, or have other values than those of the classes.
    """
    kinds, values = {}, set()
    for path in paths[:: max(1, len(paths) // NUM_CHECKED)]:
        try:
            with Image.open(path) as image:
                pixels = np.asarray(image)
        except OSError as error:
            raise InputError(f'cannot read the label map {path}: {error}') from error
        kinds.setdefault(pixels.ndim == 3, path)
        if pixels.ndim == 2:
            found = set(np.unique(pixels).tolist())
            allowed = {IGNORED, *range(num_classes + reduce_zero_label)}
            if not found <= allowed:
                raise InputError(
                    f'the label map {path} has the value {max(found - allowed)}, expected 0 to '
                    f'{num_classes - 1 + reduce_zero_label} for {num_classes} classes, or {IGNORED} where a pixel '
                    'does not count'
                )
            values |= found
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
        raise InputError('--reduce-zero-label is for label maps whose pixels are the indices of classes, these have '
                         f'colours: name those that do not count {IGNORED_NAME!r} in the palette file')  # fmt: skip
    if values == {0, IGNORED} and num_classes > 1:
        raise InputError(
            f'the label maps such as {paths[0]} have the values 0 and {IGNORED} alone, and {IGNORED} does not count: '
            'expected the indices of the classes, 0 and 1'
        )
    return rgb


# ----------------------------------------------------------------------------
# Both


def _sources(arguments: DataArguments, find) -> dict:
    """Where the data of each split are, in the order of `SPLITS`.

    Args:
        arguments: The arguments.
        find: Finds the splits in a folder.
    """
    for option in ('data', 'train_data', 'val_data'):
        path = getattr(arguments, option)
        if path and not Path(path).exists():
            raise InputError(f'--{option.replace("_", "-")} not found: {path}')
    found = find(Path(arguments.data)) if arguments.data else {}
    for split, path in (('train', arguments.train_data), ('val', arguments.val_data)):
        if path:
            inside = find(Path(path))
            if split not in inside and len(inside) > 1:
                raise InputError(f'{path} has {" and ".join(inside)}, expected {split} or a single set of images')
            found[split] = inside[split] if split in inside else next(iter(inside.values()))
    return {split: found[split] for split in SPLITS if split in found}


def _draw_val(names: list[str], source: Path) -> set[str]:
    """Draw `VAL_FRACTION` of images for validation, at least one: the same ones of the same names in every run."""
    if len(names) < 2:
        raise InputError(
            f'{source} has {len(names)} image: expected two at least, one to train on and one to validate'
        )
    return set(random.Random(VAL_SEED).sample(sorted(names), max(1, round(VAL_FRACTION * len(names)))))


_temporary_folder: list[Path] = []


def _write(name: str, text: str) -> Path:
    """Write a file to the temporary folder, in a folder of its own, and return its path."""
    if not _temporary_folder:
        _temporary_folder.append(Path(tempfile.mkdtemp(prefix='bioattn_mm_')))
        atexit.register(shutil.rmtree, _temporary_folder[0], ignore_errors=True)
    path = Path(tempfile.mkdtemp(dir=_temporary_folder[0])) / name
    path.write_text(text)
    return path


def _is_temporary(path: Path) -> bool:
    return bool(_temporary_folder) and path.is_relative_to(_temporary_folder[0])
