"""Reading own data of classifiers: a folder of images for each class."""

import json
from pathlib import Path

from ...errors import InputError, printable
from ...runtime.paths import ARRAY_SUFFIX, IMAGE_SUFFIXES
from ..checks import Problem
from . import folders
from .arguments import DataArguments
from .folders import OwnData

# A folder holds splits and no classes if at least this part of its folders is named as splits.
MOSTLY = 2 / 3


def read_class_folders(arguments: DataArguments) -> OwnData:
    """Read folders of images whose names are those of the classes."""
    if arguments.reduce_zero_label:
        raise InputError('--reduce-zero-label is for label maps: a classifier has none')
    sources = folders.sources_of(arguments, _find_splits)
    images = {split: _images_by_class(folder) for split, folder in sources.items()}
    first = next(iter(images))  # the training data, if there are any
    classes = tuple(images[first])
    empty = [sources[first] / name for name, files in images[first].items() if not files]
    if empty and arguments.problems is None:
        suffixes = ', '.join((*IMAGE_SUFFIXES, ARRAY_SUFFIX))
        raise InputError(f'{empty[0]} has no images ({suffixes}): remove the folder, or fill it')
    if empty:
        arguments.problems.extend(Problem('class without images', str(folder)) for folder in empty)
    own = OwnData(classes, notes=folders.notes_of_sources({split: (folder,) for split, folder in sources.items()}))
    if arguments.data and Path(arguments.data) not in sources.values():
        own.notes[:0] = folders.left_over(Path(arguments.data), sources.values())
    if 'train' in images and 'val' not in images:
        whole, folder = images['train'], sources['train']
        drawn = {
            name: folders.draw_val(files, folder / name) if len(files) > 1 else () for name, files in whole.items()
        }
        images['train'] = {name: [file for file in files if file not in drawn[name]] for name, files in whole.items()}
        images['val'] = {name: sorted(files) for name, files in drawn.items()}
        sources['val'] = folder
        own.notes.append(f'a tenth of the images of each class drawn for validation with seed {folders.VAL_SEED}')
    for split, by_class in images.items():
        folder = sources[split]
        if unknown := [name for name in by_class if name not in classes]:
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
        file = folders.temporary_file(f'{split}.json')
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
    names = folders.subfolders(source)
    like_splits = [name for name in names if folders.split_of_name(name)]
    if len(like_splits) < MOSTLY * len(names):  # a class may have the name train, among those of vehicles
        like_splits = [name for name in like_splits if folders.subfolders(source / name)]
    found = {split: source / name for split, name in folders.by_split(like_splits, source).items()}
    return found or dict(train=source)


def _images_by_class(folder: Path) -> dict[str, list[str]]:
    """The images of each class, seen from the folder, by the class's name in alphabetical order."""
    classes = folders.subfolders(folder)
    if not classes:
        raise InputError(
            f'{folder} has no folders of classes: expected one for each class, with its images, see docs/own_data.md'
        )
    if odd := [name for name in classes if printable(name) != name]:
        raise InputError(f'the folder {folder / odd[0]} has a name that is no text in UTF-8: rename it')
    return {name: [f'{name}/{file}' for file in folders.names_below(folder / name)] for name in classes}
