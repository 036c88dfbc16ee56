#!/usr/bin/env python
"""Write a config's training and validation data into tar files, for network file systems.

DIR gets tar files with images, label maps and what else is known of each sample, as WebDataset reads them, the
annotation files, and an index. tools/train.py and tools/test.py read it with --shards DIR.
"""

import argparse

import bioattn_mm.process_settings  # noqa: F401

from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, init_default_scope
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.datasets.shards import ShardWriter, write_samples
from bioattn_mm.errors import InputError
from bioattn_mm.files import atomic_folder, check_new
from bioattn_mm.run_config.config import load_config
from bioattn_mm.run_config.pipelines import find_datasets
from bioattn_mm.run_config.shards import annotation_files, bytes_of, check_scope, data_root_of

SPLITS = ('train', 'val')


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'make_shards.py configs/transnext/mask_rcnn_tiny_coco.py --out data/coco_shards',
        'make_shards.py configs/transnext/upernet_tiny_ade20k.py --out data/ade_shards --size 256MB --splits train',
    )
    parser.add_config()
    parser.add_argument('--out', required=True, metavar='DIR', help='folder to write, which must not be there yet')
    parser.add_argument(
        '--size', default='512MB', help='bytes of a tar file, such as 512MB or 1GB (default: %(default)s)'
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
    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with atomic_folder(out) as partial, Progress(*columns) as progress:
        writer = ShardWriter(partial, size)
        for split, datasets in configs.items():
            for dataset in map(build, datasets):
                bar = progress.add_task(split, total=len(dataset))
                write_samples(writer, split, dataset, lambda bar=bar: progress.advance(bar))
        writer.finish(root, annotation_files(config, root))
    total = sum(writer.shards.values())
    print(f'{len(writer.files):,} files in {len(writer.shards)} shards, {total / 1e6:,.1f} MB: {args.out}')


def build(config: dict) -> BaseDataset:
    """The dataset of a config with all of its images, also those that training leaves out."""
    if 'filter_cfg' in config:
        config = dict(config, filter_cfg=None)
    dataset = DATASETS.build(dict(config, pipeline=[]))
    dataset.full_init()
    return dataset


if __name__ == '__main__':
    main()
