"""The classes of a config: one call sets them in the heads of its model, its datasets and its metrics."""

from collections.abc import Iterator, Sequence

import cv2
import numpy as np
from mmengine.config import Config, ConfigDict
from mmengine.fileio import list_from_file
from mmengine.registry import DATASETS

from ...errors import InputError
from .pipelines import is_panoptic

# Parts of a model whose `num_classes` is not that of the task: the classification head that a backbone may have, and
# the foreground class of a region proposal network.
OTHER_CLASSES = ('backbone', 'rpn_head')
DATALOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
EVALUATORS = ('val_evaluator', 'test_evaluator')


def set_classes(config: Config, classes: Sequence[str], palette: Sequence[Sequence[int]] | None = None) -> None:
    """Set the classes of a config of mmdet, mmseg or mmpretrain, wherever they are stated in it.

    In the model that is `num_classes` of all heads and losses, `num_things_classes` and `num_stuff_classes`, and what
    goes by them: `out_channels`, `class_weight` (that of 'no object' stays), `topk`. The types of the datasets stay:
    one of classes of its own, such as mmseg's `ADE20KDataset`, accepts only some of those.

    Args:
        config: The config.
        classes: Names in the order of their indices, such as `dataset_meta['classes']` of a checkpoint.
        palette: At least as many colours as classes, R, G and B in 0 to 255. None: those of `default_palette`.

    Raises:
        InputError: There are no classes, or fewer colours than classes, or a name stands twice, or the model has
            nothing whose number of classes could be set.
    """
    classes = tuple(classes)
    palette = default_palette(len(classes)) if palette is None else palette
    if not classes:
        raise InputError('no classes: expected at least one name')
    twice = sorted({name for name in classes if classes.count(name) > 1})
    if twice:
        raise InputError(f'the class {twice[0]!r} stands twice among {len(classes)} classes: give each its own name')
    if len(palette) < len(classes):
        raise InputError(f'the palette has {len(palette)} colours for {len(classes)} classes')

    # mmpretrain's configs have the data preprocessor, whose mixed labels need the number, outside of the model.
    parts = [config.get('model'), config.get('data_preprocessor')]
    if not sum(_set_number(part, len(classes)) for part in parts):
        raise InputError(f'the model of {config.filename} states no num_classes: its classes cannot be set')
    for key in EVALUATORS:
        _set_number(config.get(key), len(classes))
    metainfo = dict(classes=classes, palette=[tuple(int(value) for value in c) for c in palette[: len(classes)]])
    for key in DATALOADERS:
        for dataset in leaf_dataset_configs((config.get(key) or {}).get('dataset')):
            dataset.metainfo = {**dataset.get('metainfo', {}), **metainfo}


def take_classes(config: Config, meta: dict, path: str) -> tuple[tuple[str, ...], list[tuple[int, int, int]]]:
    """Set and return the classes and the palette of a config: its own, if a checkpoint's `dataset_meta` has none.

    Raises:
        InputError: There are no classes, or a panoptic model has others than its config.
    """
    own_classes, own_palette = classes_of(config)
    classes = tuple(meta.get('classes') or own_classes)
    if not classes:
        raise InputError(
            f'neither {path} nor {config.filename} names classes: add them to the metainfo of the test dataset'
        )
    palette = meta.get('palette') or (own_palette if classes == own_classes else None)
    # mmdet's 'random' would give other colours in every run.
    if palette is None or isinstance(palette, str) or len(palette) < len(classes):
        palette = default_palette(len(classes))
    palette = [tuple(int(value) for value in color) for color in palette[: len(classes)]]
    if classes != own_classes:
        if is_panoptic(config):
            raise InputError(
                f'{path} was trained on {len(classes)} other classes than the {len(own_classes)} of '
                f'{config.filename}: name its own config'
            )
        set_classes(config, classes, palette)
    return classes, palette


def classes_of(config: Config) -> tuple[tuple[str, ...], list | None]:
    """Classes and palette of a config's test dataset."""
    return dataset_classes(next(leaf_dataset_configs(config.test_dataloader.dataset)), config.default_scope)


def dataset_classes(dataset: ConfigDict, scope: str | None) -> tuple[tuple[str, ...], list | None]:
    """Classes and palette of a dataset's config, without building it: its data may not be there."""
    own = dataset.get('metainfo') or {}
    if 'classes' not in own:
        with DATASETS.switch_scope_and_registry(scope) as registry:
            kind = registry.get(dataset.type) if isinstance(dataset.type, str) else dataset.type
        own = getattr(kind, 'METAINFO', {})
    classes = own.get('classes') or ()
    return tuple(list_from_file(classes) if isinstance(classes, str) else classes), own.get('palette')


def leaf_dataset_configs(node: object) -> Iterator[ConfigDict]:
    """The configs of the datasets that load samples themselves, inside of wrappers such as `RepeatDataset`."""
    if isinstance(node, (list, tuple)):
        for child in node:
            yield from leaf_dataset_configs(child)
    elif isinstance(node, dict):
        wrapped = node.get('dataset') or node.get('datasets')
        if wrapped is None:
            yield node
        else:
            yield from leaf_dataset_configs(wrapped)


def default_palette(num_classes: int) -> list[tuple[int, int, int]]:
    """Colours that are easy to tell apart, R, G and B in 0 to 255: each as far as possible from those before it.

    Distances in CIELAB are about those that people see. Those of more classes than about a thousand repeat.
    """
    levels = np.linspace(0, 255, 12).round()
    colours = np.stack(np.meshgrid(levels, levels, levels, indexing='ij'), -1).reshape(-1, 3)
    lab = cv2.cvtColor((colours[None] / 255).astype(np.float32), cv2.COLOR_RGB2LAB)[0]
    # Lightness is from 0 to 100; greys are left out, as they look like the image below the colour.
    is_usable = (lab[:, 0] > 25) & (lab[:, 0] < 90) & (np.linalg.norm(lab[:, 1:], axis=1) > 30)
    colours, lab = colours[is_usable], lab[is_usable]
    chosen = [int(np.linalg.norm(lab[:, 1:], axis=1).argmax())]
    distances = np.full(len(lab), np.inf)
    while len(chosen) < min(num_classes, len(lab)):
        distances = np.minimum(distances, np.linalg.norm(lab - lab[chosen[-1]], axis=1))
        chosen.append(int(distances.argmax()))
    return [tuple(int(value) for value in colours[chosen[index % len(chosen)]]) for index in range(num_classes)]


def _set_number(node: object, number: int, old: int | None = None) -> int:
    """Set the number of classes in a part of a model; return in how many dicts it was stated.

    `old` is the number that the part was made for, if the part around it states that.
    """
    if isinstance(node, (list, tuple)):
        return sum(_set_number(child, number, old) for child in node)
    if not isinstance(node, dict):
        return 0
    stated = 0
    things, stuff = node.get('num_things_classes'), node.get('num_stuff_classes')
    if things is not None or stuff is not None:
        old, stated = (things or 0) + (stuff or 0), 1
        only_stuff = things == 0
        node.update(num_things_classes=0 if only_stuff else number, num_stuff_classes=number if only_stuff else 0)
    if node.get('num_classes') is not None:
        old, stated = node['num_classes'], 1
        # mmseg's heads have a channel for each class, or for two classes a single one if they had before.
        if node.get('out_channels') == old:
            node['out_channels'] = number
        elif node.get('out_channels') == 1 and number != 2:
            node['out_channels'] = number
            node.pop('threshold', None)
        node['num_classes'] = number
    weight, topk = node.get('class_weight'), node.get('topk')
    if old is not None and weight is not None and not isinstance(weight, (int, float)):
        has_no_object = isinstance(weight, (list, tuple)) and len(weight) == old + 1  # whose weight is the last one
        node['class_weight'] = [1.0] * number + [weight[-1]] if has_no_object else None
    if isinstance(topk, (list, tuple)):
        node['topk'] = type(topk)(k for k in topk if k <= number) or (1,)
    elif isinstance(topk, int):
        node['topk'] = min(topk, number)
    children = (value for key, value in node.items() if key not in OTHER_CLASSES)
    return stated + sum(_set_number(child, number, old) for child in children)
