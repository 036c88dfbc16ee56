#!/usr/bin/env python
"""Write a config's training and validation data into tar files, for network file systems.

DIR gets tar files with images and label maps, the annotation files, and an index. train and test read it with
--shards DIR.
"""

import argparse
import os
import re
from pathlib import Path

import bioattn_mm.cli.threads_and_memory  # noqa: F401

from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, init_default_scope
from rich.progress import track

from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.data.shards import write_shards
from bioattn_mm.errors import InputError
from bioattn_mm.runtime.files import atomic_folder, check_new
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.pipelines import find_datasets, find_dicts
from bioattn_mm.training.config.shards import EVALUATORS, check_scope, data_root_of

SPLITS = ('train', 'val')
UNITS = dict(B=1, kB=1000, MB=1000**2, GB=1000**3)


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'make_shards.py configs/transnext/mask_rcnn_tiny_coco.py --out data/coco_shards',
        'make_shards.py configs/transnext/upernet_tiny_ade20k.py --out data/ade_shards --size 256MB --splits train',
    )
    parser.add_shared('config')
    parser.add_argument('--out', required=True, metavar='DIR', help='folder to write, a new one')
    parser.add_argument(
        '--size', default='512MB', help='size of a tar file, such as 512MB or 1GB (default: %(default)s)'
    )
    parser.add_argument(
        '--splits', nargs='+', choices=SPLITS, default=SPLITS, help='data to write (default: train val)'
    )
    parser.add_config_options()
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    size, out = bytes_of(args.size), check_new(args.out, '--out')
    dataloaders = tuple(f'{split}_dataloader' for split in args.splits)
    config = load_config(args.config, mini=args.mini, cfg_options=args.cfg_options, dataloaders=dataloaders)
    check_scope(config)
    init_default_scope(config.default_scope)
    configs = {split: list(find_datasets(config.get(f'{split}_dataloader'))) for split in args.splits}
    roots = {data_root_of(dataset) for datasets in configs.values() for dataset in datasets}
    if len(roots) != 1:
        raise InputError(f'shards are of one data root, {args.config} has {", ".join(sorted(roots)) or "none"}')
    (root,) = roots

    out.parent.mkdir(parents=True, exist_ok=True)
    datasets = ((split, build(dataset)) for split, of_split in configs.items() for dataset in of_split)
    with atomic_folder(out) as partial:
        content = write_shards(partial, size, root, datasets, annotation_files(config, root), track)
    total, number = sum(content['shards'].values()), len(content['shards'])
    print(f'{len(content["files"]):,} files in {number} shards, {total / 1e6:,.1f} MB: {args.out}')


def build(config: dict) -> BaseDataset:
    """The dataset of a config with all of its images, also those that training leaves out."""
    if 'filter_cfg' in config:
        config = dict(config, filter_cfg=None)
    dataset = DATASETS.build(dict(config, pipeline=[]))
    dataset.full_init()
    return dataset


def annotation_files(config: Config, root: str) -> list[str]:
    """The annotation files of a config's datasets and evaluators in a data root."""
    found = set()
    for dataset in find_datasets([config.get(f'{split}_dataloader') for split in ('train', 'val', 'test')]):
        if dataset.get('ann_file') and dataset.data_root == root:
            found.add(os.path.join(root, dataset.ann_file))
    for evaluator in find_dicts([config.get(key) for key in EVALUATORS]):
        if isinstance(evaluator.get('ann_file'), str):
            found.add(evaluator['ann_file'])
    return sorted(path for path in found if not os.path.relpath(path, root).startswith('..') and Path(path).is_file())


def bytes_of(text: str) -> int:
    """The number of a text such as 512MB."""
    found = re.fullmatch(r'([0-9.eE+]+)([kMG]?B)', text)
    try:
        value = int(float(found[1]) * UNITS[found[2]]) if found else 0
    except (ValueError, OverflowError):
        value = 0
    if value < 1:
        raise InputError(f'--size must be a number of bytes such as 512MB or 1GB, got {text}')
    return value


if __name__ == '__main__':
    main()
