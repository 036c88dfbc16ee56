"""A look at the data before a run: files that are missing and annotations that cannot be used end it."""

import functools
from collections import Counter
from pathlib import Path

from mmengine import fileio
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, init_default_scope

from ...data.checks import WHAT_TO_DO
from ...data.formats.label_maps import counts_of
from ...data.image_files import check_sizes, read_size, spread
from ...data.shards import BACKEND
from ...errors import InputError, printable
from ...runtime.images import ImageKind
from .classes import leaf_dataset_configs
from .mini import MINI_FOLDERS
from .pipelines import find_datasets, image_kind, loads_masks, prefix_of

NUM_HEADERS = 20  # of images, spread over all, which are read before a training starts
TRAINING = 'train_dataloader'


def check_data(config: Config, dataloaders: tuple[str, ...]) -> None:
    """Raise an `InputError` that names the first data folder or annotation file that does not exist."""
    for dataset in find_datasets([config.get(dataloader) for dataloader in dataloaders]):
        if (dataset.get('backend_args') or {}).get('backend') == BACKEND:  # looked for in `use_shards`
            continue
        root = Path(dataset['data_root'] or '')
        prefix = prefix_of(dataset)
        parts = [
            part for part in (prefix.values() if isinstance(prefix, dict) else [prefix]) if isinstance(part, str)
        ]
        parts += [dataset['ann_file']] if dataset.get('ann_file') else []
        for path in [root] + [root / part for part in parts]:
            if not path.exists():
                name = dataset['type'].removeprefix('bioattn_mm.')
                how = 'download them as docs/training.md says under Data, or set data_root with --cfg-options'
                if 'own_data' in config:
                    how = 'name the folder of own data with --data'
                if name in MINI_FOLDERS:
                    how += '; or use generated miniature data instead: --mini'
                raise InputError(f'no data for {name} at {path} (looked for from {Path.cwd()}); {how}')


def check_annotations(config: Config, dataloaders: tuple[str, ...], skip_bad_data: bool = False) -> list[str]:
    """Check the annotations of a config's detection and segmentation datasets, whose data exist.

    Files in COCO's format are read as a whole, label maps until there is one with a label. With `skip_bad_data`
    objects whose masks cannot be used are no error.

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
            dataset = DATASETS.build(dict(leaf, pipeline=[], lazy_init=True, serialize_data=False))
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
    from ...data.formats import coco

    path, classes = dataset.ann_file, dataset.metainfo['classes']
    content = coco.read_coco_file(path, fileio.get(path, dataset.backend_args))
    content.refuse_faults()
    path = content.path
    if not content.is_utf8:
        raise InputError(f'{path} is not in UTF-8, without byte order mark, as mmdet reads it: save it so')
    notes = []
    for problem in coco.file_problems(content, classes):
        if problem.kind == coco.OTHER_ORDER:
            notes.append(f'{path}: {coco.OTHER_ORDER}: {problem.detail}')
        elif problem.kind != 'image file twice':
            raise InputError(f'{path}: {problem.kind}: {problem.detail}')

    if not content.images:
        raise InputError(f'{path} has no images')
    left_out: dict[str, list] = {}
    problems: list[tuple[str, str]] = []  # of objects that are trained on: kind, and what is said of it
    annotated = set()  # ids of images
    labelled = 0
    for each, image, label, is_repeated in coco.objects_of(content, classes):
        if image is None:
            reason = f'are of images that the file does not have, such as image_id {each.image_id!r}'
        elif label is None:
            reason = f'are of categories that the file does not have, such as category_id {each.category_id!r}'
        else:
            reason = 'are of categories that are no classes' if label < 0 else coco.reason_left_out(each, image)
            annotated.update([image.id] if label >= 0 else [])
        if reason is not None:
            left_out.setdefault(reason.partition(',')[0], []).append((reason, each))
            continue
        problem = coco.mask_problem(each, image) if with_mask else None
        if problem and not skip_bad_data:
            raise InputError(f'{path}: {each} of the image {image.file_name}: {problem[1]}; {WHAT_TO_DO}')
        problem = problem or coco.object_problem(each, image, with_mask, is_repeated)
        if problem:
            problems.append((problem[0], f'{each} of the image {image.file_name}: {problem[1]}'))
        labelled += not each.iscrowd
    number = len(content.annotations)
    for (reason, first), *more in left_out.values():
        notes.append(f'{path}: {1 + len(more)} of {number} annotations are left out, as they {reason} ({first})')
    sizes, likenesses = _check_sizes(content.images, dataset, kind), coco.likeness(content)
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


def _check_sizes(images: list, dataset: BaseDataset, kind: ImageKind | None) -> list[str]:
    folder = Path((dataset.data_prefix or {}).get('img', ''))
    if not folder.is_dir() or next(folder.glob('*.tar'), None):  # they are in shards
        return []
    chosen = [images[index] for index in spread(len(images), NUM_HEADERS)]
    stated = [(str(folder / entry.file_name), (entry.width, entry.height)) for entry in chosen]
    problems, likeness = check_sizes(stated, functools.partial(read_size, kind=kind))
    pairs = [(each.kind, ': '.join(filter(None, (each.file, each.detail)))) for each in problems]
    return [*counted(pairs, len(chosen), 'images whose headers were read'), *filter(None, [likeness])]


def _filtered(filter_cfg: dict, images: list, annotated: set, path: str) -> list[str]:
    """What is said of the images that mmdet leaves out of a training; an `InputError` if those are all."""
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
