"""Reading own data of detectors in COCO's, YOLO's or Pascal VOC's format, which all become COCO's."""

import dataclasses
import functools
from collections import Counter
from pathlib import Path, PurePosixPath

from ...errors import InputError
from ...runtime.files import other_spelling
from ..checks import Problem
from . import folders
from .arguments import DataArguments
from .class_files import is_background
from .coco import Category, CocoFile, Source, file_problems, find_coco_files, mask_of, read_coco_file, reason_not_used
from .folders import OwnData
from .voc import find_voc
from .yolo import find_labels, find_yolo

NUM_SOUGHT = 20  # images that are looked for to find their folder


def read_objects(arguments: DataArguments, with_mask: bool) -> OwnData:
    """Read data in COCO's, YOLO's or Pascal VOC's format, with masks for a model that learns them."""
    if arguments.reduce_zero_label:
        raise InputError('--reduce-zero-label is for label maps: a detector has none')
    unused: list[str] = []
    sources = folders.sources_of(arguments, functools.partial(_find_sources, with_mask=with_mask, unused=unused))
    classes, notes, files = None, [], {}
    for split, source in sources.items():  # the training data are the first, if there are any
        file = files[split] = source.read(classes)
        if arguments.problems is None:
            file.refuse_faults()
        else:
            arguments.problems.extend([*file.faults, *file.left_out])
        if classes is None:
            classes, notes = _class_names(file)
    if 'test' in files and not files['test'].annotations:
        if len(files) == 1:
            raise InputError(f'{sources["test"].path} has no annotations, and there are no other data: name them')
        del files['test'], sources['test']
    places = {split: source.places for split, source in sources.items()}
    own = OwnData(classes, notes=[*unused, *notes, *folders.notes_of_sources(places)])
    for split, file in files.items():
        path = sources[split].path
        file.changes += folders.notes_of_left_out(file.left_out)
        _complete(file, classes, arguments.problems)
        images = file.folder or _find_image_folder(path, file, split)
        parts = {split: file}
        if split == 'train' and 'val' not in sources:
            drawn = folders.draw_val(list({image.file_name for image in file.images}), path)
            ids = {image.id for image in file.images if image.file_name in drawn}
            file.changes.append(f'{len(drawn)} images drawn for validation with seed {folders.VAL_SEED}')
            for part, is_val in dict(train=False, val=True).items():
                # Annotations of images that are not there stay with the training images.
                kept = [image for image in file.images if (image.file_name in drawn) == is_val]
                objects = [each for each in file.annotations if (each.image_id in ids) == is_val]
                parts[part] = dataclasses.replace(file, images=kept, annotations=objects)
        if with_mask and split != 'test' and file.annotations and not any(map(mask_of, file.annotations)):
            raise InputError(
                f'{path} has boxes without segmentations, and this model learns masks: take a config that detects '
                'boxes, such as configs/transnext/dino_4scale_tiny_coco.py'
            )
        for part, content in parts.items():
            ann_file = path
            if file.changes or file.folder:
                ann_file = folders.temporary_file(f'{part}.json')
                content.write(ann_file)
            own.datasets[part] = dict(
                type='CocoDataset', data_root='', ann_file=str(ann_file), data_prefix=dict(img=str(images))
            )
            own.files[part] = [images / image.file_name for image in content.images]
            own.notes.append(f'{part}: {len(content.images)} images of {images}, annotations of {path}')
        own.notes += [f'{path}: {change}' for change in file.changes]
    return own


def _find_sources(source: Path, with_mask: bool, unused: list[str]) -> dict[str, Source]:
    """The annotations of each split, in one format; `unused` gets what is to be said of other JSON files."""
    found = {"YOLO's": find_yolo(source), "VOC's": find_voc(source, with_mask)}
    found = {name: sources for name, sources in found.items() if sources}
    paths = {}
    try:
        if not (found and source.is_file()):
            paths = find_coco_files(source, [] if found else unused)
    except InputError as error:
        labels = find_labels(source) if source.is_dir() else None
        if labels and not found:
            raise InputError(
                f"{source} has labels in YOLO's format, such as {labels}, and no names of classes: expected a "
                'data.yaml with names, train and val, or classes.txt, one name a line'
            ) from error
        if not found:
            raise
    if paths and not (found and any(map(reason_not_used, paths.values()))):
        found["COCO's"] = {
            split: Source(path, (path,), lambda _, path=path: read_coco_file(path)) for split, path in paths.items()
        }
    if len(found) > 1:
        names = ' and '.join(f'{name} ({next(iter(sources.values())).path})' for name, sources in found.items())
        raise InputError(f'{source} has annotations in {len(found)} formats, {names}: name one of these with --data')
    return next(iter(found.values()))


def _class_names(content: CocoFile) -> tuple[tuple[str, ...], list[str]]:
    """The classes of a COCO file in their order, without Roboflow's group of others and the background, and notes."""
    used = {each.category_id for each in content.annotations}
    groups = {each.supercategory for each in content.categories if each.supercategory != each.name}
    classes, notes = [], []
    for category in content.categories:
        is_group = category.name in groups and category.id not in used
        if len(content.categories) > 1 and (is_group or _is_no_object(category, used)):
            what = 'a group of others' if is_group else 'no object'
            notes.append(f'{content.path}: the category {category.name!r} is {what} and is left out')
        else:
            classes.append(category.name)
    if not classes:
        raise InputError(f'{content.path} has no categories: expected the names of the classes')
    return tuple(classes), notes


def _is_no_object(category: Category, used: set) -> bool:
    """Whether a category is the background; one of this name with objects is a class unless labelme wrote it."""
    return is_background(category.name) and (category.name.startswith('_') or category.id not in used)


def _complete(content: CocoFile, classes: tuple[str, ...], problems: list[Problem] | None) -> None:
    """Bring a COCO file to what mmdet and pycocotools expect of it, in place, and say so in its `changes`.

    The classes are those of the training data; ids that stand twice are added to the problems.
    """
    annotations, changes = content.annotations, content.changes
    if not content.images:
        cannot = f' that can be used: {len(content.faults)} entries cannot' if content.faults else ''
        raise InputError(f'{content.path} has no images{cannot}')
    if backslashes := [image for image in content.images if '\\' in image.file_name]:
        for image in backslashes:
            image.file_name = image.file_name.replace('\\', '/')
        changes.append(f'the backslashes in {len(backslashes)} file names, as of Windows, were read as /')
    if content.faults:
        changes.append(f'{len(content.faults)} entries that cannot be used are left out, such as {content.faults[0]}')
    if not content.is_utf8:
        changes.append('copied in UTF-8')
    if bare := [each for each in annotations if each.area is None or each.iscrowd is None]:
        for each in bare:
            each.area = each.bbox[2] * each.bbox[3] if each.area is None else each.area
            each.iscrowd = each.iscrowd or 0
        changes.append(
            f'area (of the box) or iscrowd (0) was added to {len(bare)} of {len(annotations)} annotations without'
        )
    counts = Counter(each.id for each in annotations)
    # pycocotools takes an id of 0 for no match, and does not count what was found.
    if odd := [each for each in annotations if not isinstance(each.id, int) or each.id < 1 or counts[each.id] > 1]:
        if problems is not None:
            problems += [each for each in file_problems(content, classes) if each.kind == 'annotation id twice']
        changes.append(
            f'all {len(annotations)} annotations were numbered, as {len(odd)} had no number of their own from 1 on, '
            f'such as {odd[0]}'
        )
        for index, each in enumerate(annotations, start=1):
            each.id = index
    _order_categories(content, classes)


def _order_categories(content: CocoFile, classes: tuple[str, ...]) -> None:
    """Keep the categories that are classes, in the order of these: mmdet numbers them as they come in the file."""
    path, names = content.path, [category.name for category in content.categories]
    if unknown := [name for name in classes if names.count(name) != 1]:
        raise InputError(
            f'{path} has {names.count(unknown[0])} categories {unknown[0]!r}, expected one: all files of annotations '
            'must have the same categories'
        )
    used = {each.category_id for each in content.annotations}
    others = [category for category in content.categories if category.name not in classes]
    for category in others:
        if category.id in used and not _is_no_object(category, used):
            raise InputError(f'{path} has annotations of {category.name!r}, which is no class of the training data')
    no_objects = {category.id for category in others}
    kept = [each for each in content.annotations if each.category_id not in no_objects]
    categories = [category for category in content.categories if category.name in classes]
    ordered = sorted(categories, key=lambda category: classes.index(category.name))
    if categories != ordered:
        content.changes.append('categories were brought into the order of the training data')
    if len(kept) < len(content.annotations):
        content.changes.append(f'{len(content.annotations) - len(kept)} annotations of the background are left out')
    content.annotations, content.categories = kept, ordered


def _find_image_folder(path: Path, content: CocoFile, split: str) -> Path:
    """The folder from which the file names of a COCO file lead to images.

    It is looked for beside the file and up to two folders below the one above it. Where several hold files of the
    first names, it is the one that is named as the split, else the nearest to the file. Where the names lead nowhere
    because they begin with folders of another machine, as Label Studio writes them, the images lose these.
    """
    path = path if path.parent.name else path.absolute()  # as of `train.json`, with the images above
    in_split = folders.split_of(Path(path.parent.name)) or path.parent.name == 'annotations'
    root = path.parent.parent if in_split else path.parent
    tops = path.parent, root
    below = [each for top in tops for each in (top, *sorted(top.glob('*/')), *sorted(top.glob('*/*/')))]
    places = list(dict.fromkeys(place for place in below if place.is_dir()))

    def best(names: list[str]) -> Path | None:
        """The folder that has the most of the first names; None if none has one."""

        def rating(place: Path) -> tuple[int, bool, bool, int]:
            hits = sum((place / name).is_file() for name in names[:NUM_SOUGHT])
            inside = place.relative_to(root) if place.is_relative_to(root) else Path()
            return hits, folders.split_of(inside / 'x') == split, place == path.parent, -len(place.parts)

        found = max(places, key=rating)
        return found if rating(found)[0] else None

    whole = [image.file_name for image in content.images]
    bare = [PurePosixPath(name).name for name in whole]
    if found := best(whole):
        return found
    if len(set(bare)) == len(bare) and (found := best(bare)):
        for image, name in zip(content.images, bare):
            image.file_name = name
        content.changes.append(f'the folders in file names, such as {whole[0]}, are not there and were left out')
        return found
    spelling = next(filter(None, (other_spelling(place / whole[0]) for place in places)), '')
    raise InputError(
        f'{path} names the image {whole[0]}, which is in none of the folders {", ".join(map(str, places[:4]))}'
        + (spelling and f'; {spelling}')
    )
