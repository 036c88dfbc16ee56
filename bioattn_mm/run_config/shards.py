"""Runs whose images are in shards, see `bioattn_mm.datasets.shards`."""

import os
from collections.abc import Iterator
from pathlib import Path

from mmengine.config import Config

from ..datasets.shards import BACKEND, ShardBackend
from ..errors import InputError
from .pipelines import find_datasets, find_dicts, loads_annotations

SCOPES = ('mmdet', 'mmseg')
EVALUATORS = ('val_evaluator', 'test_evaluator')
# The sampler that reads shard after shard in place of each.
SAMPLERS = dict(DefaultSampler='bioattn_mm.ShardSampler', InfiniteSampler='bioattn_mm.InfiniteShardSampler')
UNITS = dict(B=1, kB=1000, MB=1000**2, GB=1000**3)


def check_scope(config: Config) -> None:
    """Raise an `InputError` if a config's datasets cannot be read from shards."""
    if config.default_scope not in SCOPES:
        raise InputError(
            f'shards are for datasets of {" and ".join(SCOPES)}, {config.filename} has one of {config.default_scope}'
        )


def use_shards(config: Config, folder: str, dataloaders: tuple[str, ...]) -> None:
    """Read a config's images, label maps and annotation files from a folder of shards.

    In a training, validation images that are not in the shards are read from their own files.

    Args:
        config: Changed in place.
        folder: The folder, as `tools/make_shards.py` writes it.
        dataloaders: Keys of the dataloaders; the first one's images must be there.

    Raises:
        InputError: The folder is damaged, or does not hold the images.
    """
    check_scope(config)
    for key in dataloaders:
        for dataset in find_datasets(config.get(key)):
            arguments = dict(backend=BACKEND, shards=folder, root=data_root_of(dataset))
            backend = ShardBackend(folder, arguments['root'])
            missing = [path for path in _image_folders(dataset) if not backend.isdir(path)]
            if missing and key == dataloaders[0]:
                raise InputError(
                    f'{folder} has no images of {missing[0]}: make shards of this config with tools/make_shards.py'
                )
            if missing:
                continue
            dataset.backend_args = arguments
            loading = [dataset.get('pipeline')]
            if key == 'test_dataloader':
                loading.append(config.get('tta_pipeline'))
                if config.get('default_hooks', {}).get('visualization'):
                    config.default_hooks.visualization.backend_args = arguments
            for step in find_dicts(loading):
                if str(step.get('type')).endswith('LoadImageFromFile') or loads_annotations(step):
                    step['backend_args'] = arguments
            for evaluator in find_dicts([config.get(key) for key in EVALUATORS]):
                if isinstance(evaluator.get('ann_file'), str):
                    with backend.get_local_path(evaluator['ann_file']) as path:
                        evaluator['ann_file'] = path
                # The maps that panoptic segmentation is compared with.
                if isinstance(evaluator.get('seg_prefix'), str) and backend.isdir(evaluator['seg_prefix']):
                    evaluator['backend_args'] = arguments
    # So that the config that a run saves can be read by other tools.
    imports = config.get('custom_imports') or dict(imports=[])
    config.custom_imports = dict(imports, imports=[*imports['imports'], 'bioattn_mm.datasets.shards'])


def shuffle_shards(config: Config, mixed: int) -> None:
    """Let training read shard after shard in random order, some of them mixed.

    Raises:
        InputError: The config's sampler is of another kind than mmengine's.
    """
    sampler = config.train_dataloader.sampler
    if sampler['type'] not in SAMPLERS:
        raise InputError(f'--shuffle-shards needs one of {", ".join(SAMPLERS)}, the config has {sampler["type"]}')
    sampler.update(type=SAMPLERS[sampler['type']], mixed=mixed)


def data_root_of(dataset: dict) -> str:
    """The data root of a dataset's config.

    Raises:
        InputError: It has none.
    """
    if not dataset.get('data_root'):
        raise InputError(f'shards need a data_root in the dataset {dataset["type"]} of the config, and it has none')
    return dataset['data_root']


def annotation_files(config: Config, root: str) -> list[str]:
    """The annotation files of a config's datasets and evaluators in a data root."""
    found = set()
    for dataset in find_datasets([config.get(f'{split}_dataloader') for split in ('train', 'val', 'test')]):
        if dataset.get('ann_file') and dataset.data_root == root:
            found.add(os.path.join(root, dataset.ann_file))
    for evaluator in find_dicts([config.get(key) for key in EVALUATORS]):
        if isinstance(evaluator.get('ann_file'), str):
            found.add(evaluator['ann_file'])
    inside = os.path.normpath(root) + '/'
    return sorted(path for path in found if os.path.normpath(path).startswith(inside) and Path(path).is_file())


def bytes_of(text: str) -> int:
    """A number of bytes such as 512MB.

    Raises:
        InputError: It is no number of bytes above 0.
    """
    unit = next((unit for unit in ('kB', 'MB', 'GB', 'B') if text.endswith(unit)), None)
    number = text.removesuffix(unit) if unit else ''
    try:
        value = float(number) * UNITS[unit] if unit else 0
    except ValueError:
        value = 0
    if not 1 <= value < float('inf'):
        raise InputError(f'--size must be a number of bytes such as 512MB or 1GB, got {text}')
    return int(value)


def _image_folders(dataset: dict) -> Iterator[str]:
    for key in ('img', 'img_path'):
        prefix = (dataset.get('data_prefix') or {}).get(key)
        if isinstance(prefix, str):
            yield os.path.join(dataset['data_root'], prefix)
