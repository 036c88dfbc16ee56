"""A look at annotations before a training starts: what cannot be used ends it, what is left out is counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from mmengine import fileio
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, init_default_scope

from ..datasets.checks import WHAT_TO_DO
from ..datasets.image_size import read_size
from ..datasets.parallel import spread
from ..errors import InputError, first_line, printable
from ..runtime.channels import ImageKind
from .classes import leaf_dataset_configs
from .pipelines import image_kind, loads_masks

if TYPE_CHECKING:
    from ..datasets.coco_file import CocoFile

NUM_HEADERS = 20  # of images, spread over all, which are read before a training starts
TRAINING = 'train_dataloader'


def check_annotations(config: Config, dataloaders: tuple[str, ...], skip_bad_data: bool = False) -> list[str]:
    """Check the annotations of a config's detection and segmentation datasets; other datasets are not looked at.

    Files in COCO's format are read as a whole, label maps until there is one with a label.

    Args:
        config: The config, whose data exist.
        dataloaders: Keys of the dataloaders.
        skip_bad_data: Whether the training goes on without objects whose masks cannot be used.

    Returns:
        What is left out or made of the annotations, one line each.

    Raises:
        InputError: An entry cannot be used, or nothing is labelled in the training images.
    """
    init_default_scope(config.default_scope)
    notes = []
    for key in dataloaders:
        unlabelled = []
        leaves = list(leaf_dataset_configs((config.get(key) or {}).get('dataset')))
        for leaf in leaves:
            dataset = DATASETS.build(dict(leaf, pipeline=[], lazy_init=True))
            kinds = {kind.__name__ for kind in type(dataset).mro()}
            if 'CocoDataset' in kinds and 'CocoPanopticDataset' not in kinds:
                lines, reason = _check_coco(dataset, loads_masks(config), skip_bad_data, image_kind(config))
                notes += [f'{key.removesuffix("_dataloader")}: {line}' for line in lines]
            elif 'BaseSegDataset' in kinds:
                reason = _unlabelled_maps(dataset)
            else:
                continue
            unlabelled += [reason] if reason else []
        if unlabelled and len(unlabelled) == len(leaves):
            if key == TRAINING:
                raise InputError(f'nothing is labelled in the training images: {unlabelled[0]}')
            notes.append(f'nothing is labelled in the images of {key}, so that no metric can be: {unlabelled[0]}')
    return list(map(printable, notes))


def _check_coco(
    dataset: BaseDataset, with_mask: bool, skip_bad_data: bool, kind: ImageKind | None
) -> tuple[list[str], str | None]:
    """The notes on a file in COCO's format, and if no object in it counts, what it has instead."""
    from ..datasets.coco_file import (  # here: msgspec comes with the extra of detection
        OTHER_ORDER,
        file_problems,
        labels_of,
        mask_problem,
        read_coco_file,
        reason_left_out,
    )
    from ..datasets.object_checks import TWICE, likeness, object_problem, repeated

    path, classes = dataset.ann_file, dataset.metainfo['classes']
    content = read_coco_file(path, fileio.get(path, dataset.backend_args))
    content.refuse_faults()
    path = content.path
    if not content.is_plain:
        raise InputError(f'{path} is not in the encoding that mmdet reads: save it in UTF-8, without byte order mark')
    notes = []
    for problem in file_problems(content, classes):
        if problem.kind == OTHER_ORDER:
            notes.append(f'{path}: {OTHER_ORDER}: {problem.detail}')
        elif problem.kind != 'image file twice':
            raise InputError(f'{path}: {problem.kind}: {problem.detail}')

    if not content.images:
        raise InputError(f'{path} has no images')
    images, labels = {entry.id: entry for entry in content.images}, labels_of(content, classes)
    left_out: dict[str, list] = {}
    problems: list[tuple[str, str]] = []  # of objects that are trained on: kind, and what is said of it
    annotated = set()  # ids of images
    labelled = 0
    for each, is_repeated in zip(content.annotations, repeated(content.annotations)):
        image, label = images.get(each.image_id), labels.get(each.category_id)
        if image is None:
            reason = f'are of images that the file does not have, such as image_id {each.image_id!r}'
        elif label is None:
            reason = f'are of categories that the file does not have, such as category_id {each.category_id!r}'
        else:
            reason = 'are of categories that are no classes' if label < 0 else reason_left_out(each, image)
            annotated.update([image.id] if label >= 0 else [])
        if reason is not None:
            left_out.setdefault(reason.partition(',')[0], []).append((reason, each))
            continue
        problem = mask_problem(each, image) if with_mask else None
        if problem and not skip_bad_data:
            raise InputError(f'{path}: {each} of the image {image.file_name}: {problem[1]}; {WHAT_TO_DO}')
        problem = problem or object_problem(each, image, with_mask)
        if problem is None and is_repeated:
            problem = TWICE
        if problem:
            problems.append((problem[0], f'{each} of the image {image.file_name}: {problem[1]}'))
        labelled += not each.iscrowd
    number = len(content.annotations)
    for (reason, first), *more in left_out.values():
        notes.append(f'{path}: {1 + len(more)} of {number} annotations are left out, as they {reason} ({first})')
    sizes, likenesses = _check_sizes(content, dataset, kind), likeness(content)
    notes += [f'{path}: {line}' for line in [*counted(problems, number, 'annotations'), *sizes, *likenesses]]
    if problems or sizes or likenesses:
        notes.append(f'{path}: bioattn inspect-data with the same config and data lists all that is wrong')
    if not labelled:
        reasons = (f'{1 + len(more)} {reason}' for (reason, _), *more in left_out.values())
        return notes, '; '.join([f'{path} has {number} annotations', *reasons, *likenesses])
    if not dataset.test_mode:
        notes += _filtered(dataset.filter_cfg or {}, content.images, annotated, path)
    return notes, None


def counted(problems: list[tuple[str, str]], number: int, what: str) -> list[str]:
    """A line for each kind of problem, pairs of kind and detail: how many of how many have it, and the first."""
    firsts = dict(reversed(problems))
    kinds = Counter(kind for kind, _ in problems)
    return [f'{count} of {number} {what}: {kind}, such as {firsts[kind]}' for kind, count in kinds.items()]


def _check_sizes(content: CocoFile, dataset: BaseDataset, kind: ImageKind | None) -> list[str]:
    """What is said of the sizes of some images, if their annotations state others than their headers."""
    from ..datasets.object_checks import is_local, size_likeness, size_problem

    folder = Path((dataset.data_prefix or {}).get('img', ''))
    if not is_local(folder):
        return []
    chosen = [content.images[index] for index in spread(len(content.images), NUM_HEADERS)]
    pairs, problems = [], []
    for entry in chosen:
        try:
            actual = read_size(folder / entry.file_name, decode=False, kind=kind)
        except FileNotFoundError:
            problems.append(('image missing', str(folder / entry.file_name)))
            continue
        except Exception as error:  # damaged images raise errors of many kinds
            problems.append(('image unreadable', f'{folder / entry.file_name}: {first_line(error)}'))
            continue
        pairs.append(((entry.width, entry.height), actual))
        if problem := size_problem(*pairs[-1]):
            problems.append((problem[0], f'{folder / entry.file_name}: {problem[1]}'))
    lines = counted(problems, len(chosen), 'images whose headers were read')
    return [*lines, *filter(None, [size_likeness(pairs)])]


def _filtered(filter_cfg: dict, images: list, annotated: set, path: str) -> list[str]:
    """What is said of the images that mmdet leaves out of a training, as the config's `filter_cfg` says.

    Raises:
        InputError: It leaves out all of them.
    """
    least = filter_cfg.get('min_size', 0)
    empty = [entry for entry in images if filter_cfg.get('filter_empty_gt') and entry.id not in annotated]
    small = [entry for entry in images if min(entry.width, entry.height) < least]
    notes = []
    for entries, what in ((empty, 'without annotations'), (small, f'below {least} pixels')):
        if entries:
            such = f'such as {entries[0].file_name}'
            notes.append(f'{path}: {len(entries)} of {len(images)} images {what} are left out (filter_cfg), {such}')
    if len({entry.id for entry in (*empty, *small)}) == len(images):
        raise InputError(f'no image can be trained on: {"; ".join(notes)}')
    return notes


def _unlabelled_maps(dataset: BaseDataset) -> str | None:
    """What the label maps of a dataset of mmseg have if none of them has a label."""
    from ..datasets.label_maps import counts_of  # here: it imports mmseg

    dataset.full_init()
    if not len(dataset):
        raise InputError(f'no images in {dataset.data_prefix.get("img_path")}')
    path = None
    for index in range(len(dataset)):
        found = counts_of(dataset, index)
        if found is None:
            continue
        path = dataset.get_data_info(index)['seg_map_path']
        counts, wrong = found
        if wrong or counts.any():
            return None
    return path and f'no pixel of the {len(dataset)} label maps such as {path} counts'
