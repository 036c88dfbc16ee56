"""Reading own data of detectors: annotations in COCO's format, and those of other formats, which become that."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ...datasets.coco_file import Category, CocoFile, ImageEntry, mask_of, read_coco_file
from ...datasets.problem import Problem
from ...errors import InputError
from ...files import other_spelling
from ...runtime.inputs import is_hidden
from .arguments import DataArguments
from .class_files import is_background
from .folders import SPLITS, VAL_SEED, OwnData, draw_val, notes_of_sources, sources_of, split_of, temporary_file
from .other_formats import other_format
from .sources import Content, Source
from .voc import find_voc
from .yolo import find_labels, find_yolo

# Other files that the real COCO has beside its instances: they are large, and read where there are no instances.
OTHER_COCO_FILES = ('captions', 'person_keypoints', 'panoptic', 'stuff', 'image_info')
# JSON files in a folder that are read to find those in COCO's format.
MAX_JSON_FILES = 20
# Images that are looked for to find their folder.
NUM_SOUGHT = 20


def read_coco(arguments: DataArguments, with_mask: bool) -> OwnData:
    """Read data in COCO's, YOLO's or Pascal VOC's format.

    Args:
        arguments: Where they are.
        with_mask: Whether the model learns masks.

    Raises:
        InputError: The data are in no layout of `LAYOUTS`, cannot be read, or have no masks for a model of masks.
    """
    if arguments.reduce_zero_label:
        raise InputError('--reduce-zero-label is for label maps: a detector has none')
    unused: list[str] = []
    sources = sources_of(arguments, functools.partial(_find_sources, with_mask=with_mask, unused=unused))
    classes, notes, contents = None, [], {}
    for split, source in sources.items():  # the training data are the first, if there are any
        contents[split] = source.read(classes)
        _note_problems(contents[split], arguments.problems)
        if classes is None:
            classes, notes = _class_names(contents[split].file)
    if 'test' in contents and not contents['test'].file.annotations:
        if len(contents) == 1:
            raise InputError(f'{sources["test"].path} has no annotations, and there are no other data: name them')
        del contents['test'], sources['test']
    places = {split: source.places for split, source in sources.items()}
    own = OwnData(classes, notes=[*unused, *notes, *notes_of_sources(places)])
    for split, source in sources.items():
        path, content = source.path, contents[split].file
        changes = contents[split].changes() + _complete(content, classes, arguments.problems)
        images = contents[split].images or _find_image_folder(path, content.images, split, changes)
        parts = {split: content}
        if split == 'train' and 'val' not in sources:
            parts = _split_coco(content)
            changes.append(f'{len(parts["val"].images)} images drawn for validation with seed {VAL_SEED}')
        if with_mask and split != 'test' and not any(map(mask_of, content.annotations)):
            raise InputError(
                f'{path} has boxes without segmentations, and this model learns masks: take a config that detects '
                'boxes, such as configs/transnext/dino_4scale_tiny_coco.py'
            )
        for part, part_content in parts.items():
            file = path
            if changes or contents[split].images:
                file = temporary_file(f'{part}.json')
                part_content.write(file)
            own.datasets[part] = dict(
                type='CocoDataset', data_root='', ann_file=str(file), data_prefix=dict(img=str(images))
            )
            own.files[part] = [images / image.file_name for image in part_content.images]
            own.notes.append(f'{part}: {len(part_content.images)} images of {images}, annotations of {path}')
        own.notes += [f'{path}: {change}' for change in changes]
    return own


def _find_sources(source: Path, with_mask: bool, unused: list[str]) -> dict[str, Source]:
    """The annotations of each split, in the one format in which there are some.

    Args:
        source: A folder, or a file.
        with_mask: Whether the model learns masks.
        unused: To which is added what is to be said of other JSON files.

    Raises:
        InputError: There are none, or they are in several formats.
    """
    found = {"YOLO's": find_yolo(source), "VOC's": find_voc(source, with_mask)}
    found = {name: sources for name, sources in found.items() if sources}
    if not found:
        try:
            return _coco_sources(_find_coco_files(source, unused))
        except InputError as error:
            other = other_format(source)
            if other is not None:
                raise InputError(other) from error
            labels = find_labels(source) if source.is_dir() else None
            if labels is None:
                raise
        raise InputError(
            f"{source} has labels in YOLO's format, such as {labels}, and no names of classes: expected a data.yaml "
            'with names, train and val, or classes.txt, one name a line'
        )
    try:
        paths = _find_coco_files(source, []) if source.is_dir() else {}
    except InputError:
        paths = {}
    if paths and not any(map(_reason_not_coco, paths.values())):
        found["COCO's"] = _coco_sources(paths)
    if len(found) > 1:
        names = ' and '.join(f'{name} ({next(iter(sources.values())).path})' for name, sources in found.items())
        raise InputError(f'{source} has annotations in {len(found)} formats, {names}: name one of these with --data')
    return next(iter(found.values()))


def _coco_sources(paths: dict[str, Path]) -> dict[str, Source]:
    return {split: Source(path, (path,), functools.partial(_coco_content, path)) for split, path in paths.items()}


def _coco_content(path: Path, _: object) -> Content:
    try:
        return Content(read_coco_file(path))
    except InputError as error:
        other = other_format(path)
        if other is not None:
            raise InputError(other) from error
        raise


def _find_coco_files(source: Path, unused: list[str]) -> dict[str, Path]:
    """The files of COCO's format by split; a file of no known split is that of 'train'.

    Args:
        source: A folder, or a file.
        unused: To which is added what is to be said of the other JSON files.
    """
    if source.is_file():
        return {'train': source}
    patterns = ('*.json', 'annotations/*.json', '*/*.json', '*/annotations/*.json')
    paths = dict.fromkeys(path for pattern in patterns for path in sorted(source.glob(pattern)))
    paths = [path for path in paths if not is_hidden(path.relative_to(source))]  # as the checkpoints of Jupyter are
    links = [f'{path} is a link to {path.readlink()}, which is not there' for path in paths if _leads_nowhere(path)]
    paths = [path for path in paths if path.is_file()]
    instances = {split_of(path.relative_to(source)) for path in paths if path.name.startswith('instances')}
    paths = [
        path
        for path in paths
        if not path.name.startswith(OTHER_COCO_FILES)
        or (split_of(path.relative_to(source)) not in instances and _has_instances(path))
    ]
    if len(paths) > MAX_JSON_FILES:
        raise InputError(
            f'{source} has {len(paths)} JSON files, expected one for each of train, val and test: name them with '
            '--train-data and --val-data'
        )
    found: dict[str, list[Path]] = {}
    for path in paths:
        found.setdefault(split_of(path.relative_to(source)), []).append(path)
    # A single file that is named as a split is read later, and only once, as those of the real COCO are large.
    reasons = {
        path: reason
        for split, files in found.items()
        for path in files
        if not (split and len(files) == 1) and (reason := _reason_not_coco(path))
    }
    found = {split: [path for path in files if path not in reasons] for split, files in found.items()}
    found = {split: files for split, files in found.items() if files}
    if not found:
        looked = '; '.join([*reasons.values(), *links][:3]) or f'looked for {", ".join(patterns)}'
        raise InputError(
            f"no annotations in COCO's format in {source}: {looked}; expected JSON with images, annotations and "
            'categories, see docs/own_data.md'
        )
    unused += [f'not used: {reason}' for reason in (*reasons.values(), *links)]
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
    elif unnamed:
        unused.append(f'not used: {unnamed[0]}, as {found["train"][0]} is named as the training data')
    return {split: found[split][0] for split in SPLITS if split in found}


def _has_instances(path: Path) -> bool:
    """Whether a file holds boxes of objects, as some whose name is that of another kind do."""
    try:
        content = read_coco_file(path)
    except InputError:
        return False
    return bool(content.annotations) and not content.faults


def _leads_nowhere(path: Path) -> bool:
    """Whether a path is a link to what is not there, as after data were moved."""
    return path.is_symlink() and not path.exists()


def _reason_not_coco(path: Path) -> str | None:
    """Why a file is not in COCO's format; None if it is."""
    try:
        read_coco_file(path)
    except InputError as error:
        return str(error)
    return None


def _note_problems(content: Content, problems: list[Problem] | None) -> None:
    """Add what cannot be used of the annotations to the problems, or refuse it if these are not listed."""
    if problems is None:
        content.file.refuse_faults()
    else:
        problems += [*content.file.faults, *content.left_out]


def _class_names(content: CocoFile) -> tuple[tuple[str, ...], list[str]]:
    """The classes of a COCO file in their order, and notes.

    Roboflow writes a category without annotations that the others name as their supercategory: it is left out, and so
    is the background, which labelme writes as `_background_`.
    """
    used = {each.category_id for each in content.annotations}
    groups = {each.supercategory for each in content.categories if each.supercategory != each.name}
    classes, notes = [], []
    for category in content.categories:
        if category.name in groups and category.id not in used and len(content.categories) > 1:
            notes.append(f'{content.path}: the category {category.name!r} is a group of others and is left out')
        elif _is_no_object(category, used) and len(content.categories) > 1:
            notes.append(f'{content.path}: the category {category.name!r} is no object and is left out')
        else:
            classes.append(category.name)
    if not classes:
        raise InputError(f'{content.path} has no categories: expected the names of the classes')
    return tuple(classes), notes


def _is_no_object(category: Category, used: set) -> bool:
    """Whether a category is the background; one of this name with objects is a class unless labelme wrote it."""
    return is_background(category.name) and (category.name.startswith('_') or category.id not in used)


def _complete(content: CocoFile, classes: tuple[str, ...], problems: list[Problem] | None) -> list[str]:
    """Bring a COCO file to what mmdet and pycocotools expect of it.

    Args:
        content: Changed in place.
        classes: The classes of the training data.
        problems: To which ids that stand twice are added.

    Returns:
        What was changed.

    Raises:
        InputError: Something is missing that cannot be made up for.
    """
    path, annotations = content.path, content.annotations
    if not content.images:
        faults = content.faults
        raise InputError(
            f'{path} has no images' + (f' that can be used: {len(faults)} entries cannot' if faults else '')
        )
    changes = list(content.changes)
    backslashes = [image for image in content.images if '\\' in image.file_name]
    for image in backslashes:
        image.file_name = image.file_name.replace('\\', '/')
    if backslashes:
        changes.append(f'the backslashes in {len(backslashes)} file names, as of Windows, were read as /')
    if content.faults:
        changes.append(f'{len(content.faults)} entries that cannot be used are left out, such as {content.faults[0]}')
    if not content.is_plain:
        changes.append('copied in ASCII, as mmdet reads a file in the encoding of the locale')
    bare = [each for each in annotations if each.area is None or each.iscrowd is None]
    for each in bare:
        each.area = each.bbox[2] * each.bbox[3] if each.area is None else each.area
        each.iscrowd = each.iscrowd or 0
    if bare:
        changes.append(
            f'area (of the box) or iscrowd (0) was added to {len(bare)} of {len(annotations)} annotations without'
        )
    return [*changes, *_number(content, problems), *_order_categories(content, classes)]


def _number(content: CocoFile, problems: list[Problem] | None) -> list[str]:
    """Number the annotations if their ids are not numbers from 1 on, each of its own; return what was changed."""
    annotations = content.annotations
    counts = Counter(each.id for each in annotations)
    # pycocotools takes an id of 0 for no match, and does not count what was found.
    odd = [each for each in annotations if not isinstance(each.id, int) or each.id < 1 or counts[each.id] > 1]
    if not odd:
        return []
    twice = [(value, count) for value, count in counts.items() if value is not None and count > 1]
    if problems is not None:
        problems += [
            Problem('annotation id twice', content.path, f'{value!r} stands {n} times') for value, n in twice
        ]
    change = (
        f'all {len(annotations)} annotations were numbered, as {len(odd)} had no number of their own from 1 on, '
        f'such as {odd[0]}'
    )
    for index, each in enumerate(annotations, start=1):
        each.id = index
    return [change]


def _order_categories(content: CocoFile, classes: tuple[str, ...]) -> list[str]:
    """Keep the categories that are classes, in the order of these; return what was changed."""
    path, names = content.path, [category.name for category in content.categories]
    unknown = [name for name in classes if names.count(name) != 1]
    if unknown:
        raise InputError(
            f'{path} has {names.count(unknown[0])} categories {unknown[0]!r}, expected one: all files of annotations '
            'must have the same categories'
        )
    used = {each.category_id for each in content.annotations}
    for category in content.categories:
        if category.name not in classes and category.id in used and not _is_no_object(category, used):
            raise InputError(f'{path} has annotations of {category.name!r}, which is no class of the training data')
    no_objects = {category.id for category in content.categories if category.name not in classes}
    before = len(content.annotations)
    content.annotations = [each for each in content.annotations if each.category_id not in no_objects]
    content.categories = sorted(
        (category for category in content.categories if category.name in classes),
        key=lambda category: classes.index(category.name),
    )
    # mmdet numbers the classes as they come in the file.
    is_ordered = [name for name in names if name in classes] == list(classes)
    changes = [] if is_ordered else ['categories were brought into the order of the training data']
    if len(content.annotations) < before:
        changes.append(f'{before - len(content.annotations)} annotations of the background are left out')
    return changes


def _find_image_folder(path: Path, images: list[ImageEntry], split: str, changes: list[str]) -> Path:
    """The folder from which the file names of a COCO file lead to images.

    It is looked for beside the file and up to two folders below the one above it. Where several hold files of the
    first names, it is the one that is named as the split, else the nearest to the file.

    Where the names lead nowhere because they begin with folders of another machine, as Label Studio writes them, the
    images lose these folders, and `changes` says so.
    """
    in_split = split_of(Path(path.parent.name)) or path.parent.name == 'annotations'
    root = path.parent.parent if in_split else path.parent
    folders = [path.parent, *(folder for top in {path.parent, root} for folder in (top, *_folders(top)))]
    names = [image.file_name for image in images[:NUM_SOUGHT]]

    def rating(folder: Path) -> tuple[int, bool, bool, int]:
        hits = sum((folder / name).is_file() for name in names)
        inside = folder.relative_to(root) if folder.is_relative_to(root) else Path()
        return hits, split_of(inside / 'x') == split, folder == path.parent, -len(folder.parts)

    best = max(dict.fromkeys(folders), key=rating)
    bare = [PurePosixPath(image.file_name).name for image in images]
    if rating(best)[0] == 0 and len(set(bare)) == len(bare):
        whole, names = names, bare[:NUM_SOUGHT]
        best = max(dict.fromkeys(folders), key=rating)
        if rating(best)[0]:
            for image, name in zip(images, bare):
                image.file_name = name
            changes.append(f'the folders in file names, such as {whole[0]}, are not there and were left out')
            return best
        names = whole
    if rating(best)[0] == 0:
        tried = ', '.join(str(folder) for folder in list(dict.fromkeys(folders))[:4])
        spellings = filter(None, (other_spelling(folder / names[0]) for folder in folders))
        raise InputError(
            f'{path} names the image {names[0]}, which is in none of the folders {tried}'
            + ''.join(f'; {line}' for line in list(spellings)[:1])
        )
    return best


def _folders(top: Path) -> Iterator[Path]:
    """The folders up to two below another."""
    for pattern in ('*/', '*/*/'):
        yield from sorted(path for path in top.glob(pattern) if path.is_dir())


def _split_coco(content: CocoFile) -> dict[str, CocoFile]:
    """Draw validation images at random; annotations of images that are not there stay with the training images."""
    drawn = draw_val(list({image.file_name for image in content.images}), content.path)
    val = [image for image in content.images if image.file_name in drawn]
    ids = {image.id for image in val}
    return dict(
        train=dataclasses.replace(
            content,
            images=[image for image in content.images if image.file_name not in drawn],
            annotations=[each for each in content.annotations if each.image_id not in ids],
        ),
        val=dataclasses.replace(
            content, images=val, annotations=[each for each in content.annotations if each.image_id in ids]
        ),
    )
