"""Reading own data of classifiers: a folder of images for each class."""

import json
from pathlib import Path

from ...datasets.problem import Problem
from ...errors import InputError
from ...runtime.inputs import ARRAY_SUFFIX, IMAGE_SUFFIXES
from .arguments import DataArguments
from .folders import (
    VAL_SEED,
    OwnData,
    by_split,
    draw_val,
    images_below,
    left_over,
    notes_of_sources,
    sources_of,
    split_of_name,
    subfolders,
    temporary_file,
)

Images = dict[str, list[str]]  # by class
# A folder holds splits and no classes if at least this part of its folders is named as splits.
MOSTLY = 2 / 3


def read_class_folders(arguments: DataArguments) -> OwnData:
    """Read folders of images whose names are those of the classes.

    Raises:
        InputError: The data are in no layout of `LAYOUTS`, or the splits do not fit each other.
    """
    if arguments.reduce_zero_label:
        raise InputError('--reduce-zero-label is for label maps: a classifier has none')
    sources = sources_of(arguments, _find_splits)
    images = {split: _images_by_class(folder) for split, folder in sources.items()}
    first = next(iter(images))  # the training data, if there are any
    classes = tuple(images[first])
    empty = [name for name, files in images[first].items() if not files]
    if empty:
        where = sources[first] / empty[0]
        if arguments.problems is None:
            suffixes = ', '.join((*IMAGE_SUFFIXES, ARRAY_SUFFIX))
            raise InputError(f'{where} has no images ({suffixes}): remove the folder, or fill it')
        arguments.problems.extend(Problem('class without images', str(sources[first] / name)) for name in empty)
    own = OwnData(classes, notes=[*_left_over(arguments, sources), *notes_of_sources(sources)])
    if 'train' in images and 'val' not in images:
        images['train'], images['val'] = _without_val(images['train'], sources['train'])
        sources['val'] = sources['train']
        own.notes.append(f'a tenth of the images of each class drawn for validation with seed {VAL_SEED}')
    for split, by_class in images.items():
        folder = sources[split]
        unknown = [name for name in by_class if name not in classes]
        if unknown:
            raise InputError(
                f'{folder / unknown[0]} is of no class of {sources[first]}: expected folders among '
                f'{", ".join(classes)}'
            )
        samples = [
            dict(img_path=file, gt_label=label)
            for label, name in enumerate(classes)
            for file in by_class.get(name, ())
        ]
        if not samples:
            raise InputError(f'no {split} images in {folder}: expected two at least of a class')
        own.files[split] = [folder / sample['img_path'] for sample in samples]
        file = temporary_file(f'{split}.json')
        file.write_text(json.dumps(dict(metainfo={}, data_list=samples)), encoding='ascii')
        own.datasets[split] = dict(
            type='BaseDataset', data_root='', ann_file=str(file), data_prefix=dict(img_path=str(folder))
        )
        absent = ', '.join(name for name in classes if not by_class.get(name))
        own.notes.append(f'{split}: {len(samples)} images of {folder}' + (f', none of {absent}' if absent else ''))
    return own


def _find_splits(source: Path) -> dict[str, Path]:
    """The folder of each split, which holds those of the classes; without splits it is the source, for training."""
    if not source.is_dir():
        raise InputError(f'{source} is no folder: expected one with a folder of images for each class')
    names = subfolders(source)
    like_splits = [name for name in names if split_of_name(name)]
    if len(like_splits) < MOSTLY * len(names):  # a class may have the name train, among those of vehicles
        like_splits = [name for name in like_splits if subfolders(source / name)]
    found = {split: source / name for split, name in by_split(like_splits, source).items()}
    return found or dict(train=source)


def _left_over(arguments: DataArguments, sources: dict[str, Path]) -> list[str]:
    """What is said of the folders beside those of the splits."""
    source = Path(arguments.data) if arguments.data else None
    return [] if source is None or source in sources.values() else left_over(source, sources.values())


def _images_by_class(folder: Path) -> Images:
    """The images of each class, seen from the folder, by the class's name in alphabetical order."""
    classes = subfolders(folder)
    if not classes:
        raise InputError(
            f'{folder} has no folders of classes: expected one for each class, with its images, see docs/own_data.md'
        )
    return {name: [f'{name}/{file}' for file in images_below(folder / name)] for name in classes}


def _without_val(by_class: Images, folder: Path) -> tuple[Images, Images]:
    """The images to train on, and those to validate on: of a class with a single image none."""
    val = {name: draw_val(files, folder / name) if len(files) > 1 else set() for name, files in by_class.items()}
    train = {name: [file for file in files if file not in val[name]] for name, files in by_class.items()}
    return train, {name: sorted(files) for name, files in val.items()}
