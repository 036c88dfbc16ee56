"""Reading own data of detectors: annotations in COCO's format."""

import json
from collections.abc import Iterator
from pathlib import Path

from ...errors import InputError
from .arguments import DataArguments
from .folders import SPLITS, VAL_SEED, OwnData, draw_val, sources_of, split_of, write_file

# Other files that the real COCO has beside its instances.
OTHER_COCO_FILES = ('captions', 'person_keypoints', 'panoptic', 'stuff', 'image_info')
# JSON files in a folder that are read to find those in COCO's format.
MAX_JSON_FILES = 20
# Images that are looked for to find their folder.
NUM_SOUGHT = 20


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
    sources = sources_of(arguments, _find_coco_files)
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
            file = write_file(f'{part}.json', json.dumps(part_content)) if changes else path
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
        found.setdefault(split_of(path.relative_to(source)), []).append(path)
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
    in_split = split_of(Path(path.parent.name)) or path.parent.name == 'annotations'
    root = path.parent.parent if in_split else path.parent
    folders = [path.parent, *(folder for top in {path.parent, root} for folder in (top, *_folders(top)))]
    names = [image['file_name'] for image in images[:NUM_SOUGHT]]

    def rating(folder: Path) -> tuple[int, bool, bool, int]:
        hits = sum((folder / name).is_file() for name in names)
        inside = folder.relative_to(root) if folder.is_relative_to(root) else Path()
        return hits, split_of(inside / 'x') == split, folder == path.parent, -len(folder.parts)

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
    drawn = draw_val([image['file_name'] for image in content['images']], path)
    parts = {}
    for part in ('train', 'val'):
        images = [image for image in content['images'] if (image['file_name'] in drawn) == (part == 'val')]
        ids = {image['id'] for image in images}
        annotations = [each for each in content['annotations'] if each['image_id'] in ids]
        parts[part] = {**content, 'images': images, 'annotations': annotations}
    return parts
