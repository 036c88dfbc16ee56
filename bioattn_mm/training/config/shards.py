"""Runs whose images are in shards, see `bioattn_mm.data.shards`."""

import os

from mmengine.config import Config

from ...data.shards import BACKEND, ShardBackend
from ...errors import InputError
from .classes import EVALUATORS
from .pipelines import find_datasets, find_dicts, loads_annotations

SCOPES = ('mmdet', 'mmseg')
# The sampler that reads shard after shard in place of each.
SAMPLERS = dict(DefaultSampler='bioattn_mm.ShardSampler', InfiniteSampler='bioattn_mm.InfiniteShardSampler')


def check_scope(config: Config) -> None:
    """Raise an `InputError` if a config's datasets cannot be read from shards."""
    if config.default_scope not in SCOPES:
        raise InputError(
            f'shards are for datasets of {" and ".join(SCOPES)}, {config.filename} has one of {config.default_scope}'
        )


def use_shards(config: Config, folder: str, dataloaders: tuple[str, ...]) -> None:
    """Read a config's images, label maps and annotation files from a folder of shards of `tools/make_shards.py`.

    The images of the first of the dataloaders must be there; those of others are read from their files if they are
    not.

    Raises:
        InputError: The folder is damaged, or does not hold the images.
    """
    check_scope(config)
    for key in dataloaders:
        for dataset in find_datasets(config.get(key)):
            arguments = dict(backend=BACKEND, shards=folder, root=data_root_of(dataset))
            backend = ShardBackend(folder, arguments['root'])
            prefix = dataset.get('data_prefix') or {}
            folders = [prefix[key] for key in ('img', 'img_path') if isinstance(prefix.get(key), str)]
            paths = [os.path.join(dataset['data_root'], folder) for folder in folders]
            missing = [path for path in paths if not backend.isdir(path)]
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
    config.custom_imports = dict(imports, imports=[*imports['imports'], 'bioattn_mm.data.shards'])


def shuffle_shards(config: Config, mixed: int) -> None:
    """Let training read shard after shard in random order, some of them mixed."""
    sampler = config.train_dataloader.sampler
    if sampler['type'] not in SAMPLERS:
        raise InputError(f'--shuffle-shards needs one of {", ".join(SAMPLERS)}, the config has {sampler["type"]}')
    sampler.update(type=SAMPLERS[sampler['type']], mixed=mixed)


def data_root_of(dataset: dict) -> str:
    if not dataset.get('data_root'):
        raise InputError(f'shards need a data_root in the dataset {dataset["type"]} of the config, and it has none')
    return dataset['data_root']
