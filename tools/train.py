#!/usr/bin/env python
"""Train a model of any mmdet, mmseg or mmpretrain config."""

import argparse
import os
import shlex
from contextlib import nullcontext
from pathlib import Path

import bioattn_mm.cli.threads_and_memory  # noqa: F401
from bioattn_mm.cli.restarts import is_restart

from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.runner import FlexibleRunner, Runner

from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.data.formats.arguments import DataArguments, data_arguments
from bioattn_mm.errors import InputError
from bioattn_mm.training.checkpoints import latest_checkpoint
from bioattn_mm.training.config.computation import set_computation, set_randomness
from bioattn_mm.training.config.data_check import check_annotations
from bioattn_mm.training.config.distributed import rank_and_size
from bioattn_mm.training.config.loading import default_work_dir, load_config
from bioattn_mm.training.config.model_check import check_initial_weights, model_of
from bioattn_mm.training.config.own_data import keep_data_files
from bioattn_mm.training.config.pipelines import add_hook
from bioattn_mm.training.config.samples import set_fraction
from bioattn_mm.training.config.shards import shuffle_shards
from bioattn_mm.training.dry_run import dry_run
from bioattn_mm.training.randomness import warn_if_unseeded
from bioattn_mm.training.readable_log import readable_log
from bioattn_mm.training.runner import build_runner, failures_in_one_line
from bioattn_mm.training.start import WAIT, check_nothing_there, forget_initial_weights, locked, set_resume, set_start
from bioattn_mm.training.step_log import summarised
from bioattn_mm.training.trackers import set_trackers


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'train.py configs/transnext/upernet_tiny_ade20k.py --mini',
        'train.py configs/transnext/upernet_tiny_ade20k.py --dry-run',
        'train.py configs/transnext/upernet_tiny_ade20k.py --resume',
        'train.py configs/transnext/mask_rcnn_tiny_coco.py --data DIR --epochs 20',
        'train.py mask_rcnn --backbone timm/vit_small_patch14_dinov2 --data DIR --epochs 20',
    )
    parser.add_shared('config')
    add_run(parser)
    add_computation(parser)
    add_reading(parser)
    parser.add_shared('--log', '--launcher', '--local-rank')
    parser.add_config_options()
    return parser.parse_args()


def add_run(parser: ToolParser) -> None:
    """Add what is trained, from which weights, how long, and where it is written."""
    parser.add_argument(
        '--backbone',
        metavar='timm/NAME',
        help="take this timm backbone and its weights instead of the config's; CONFIG can then be mask_rcnn, dino, "
        'mask2former, mask2former_instance or upernet',
    )
    parser.add_data()
    parser.add_integer(
        '--epochs',
        minimum=1,
        metavar='N',
        help="train for N epochs, and stretch the config's schedule to them (default: the config's)",
    )
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        '--from-scratch',
        action='store_true',
        help='start from random weights, with one learning rate for all parameters',
    )
    start.add_argument(
        '--load-from',
        metavar='CHECKPOINT',
        help='start from a checkpoint of a whole model, even with other classes (default: the backbone weights that '
        'the config names)',
    )
    parser.add_argument(
        '--work-dir',
        help='folder for logs and checkpoints (default: work_dirs/SYSTEM/CONFIG, with _DIR for --data and _mini for '
        '--mini)',
    )
    parser.add_argument(
        '--dry-run',
        action='store_true',
        help='take one training step and predict one validation image; print what the training will be, or why it '
        'would fail; write nothing',
    )
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='continue from CHECKPOINT, or from the latest one in the work dir if there is one',
    )


def add_computation(parser: ToolParser) -> None:
    """Add how it is computed: precision, compilation, processes, random numbers."""
    parser.add_shared('--amp', '--cuda-graphs')
    parser.add_argument(
        '--compile',
        nargs='?',
        const='inductor',
        metavar='BACKEND',
        help='compile backbone and neck with torch.compile, which takes minutes; inductor if you name no BACKEND',
    )
    parser.add_argument(
        '--strategy',
        metavar='FILE',
        help='config file of a strategy other than data parallelism, such as configs/_base_/strategies/fsdp.py; for '
        'several processes',
    )
    parser.add_argument(
        '--hang-timeout',
        type=float,
        metavar='SECONDS',
        help="stop if a process waits this long for another (default: the config's env_cfg.dist_cfg.timeout, 2400)",
    )
    parser.add_integer(
        '--seed', minimum=0, help="seed of all random numbers (default: the config's, or a random one)"
    )
    parser.add_argument(
        '--deterministic',
        action='store_true',
        help='get the same losses from every run with the same seed: slower, and an error if an operation has no '
        'such GPU kernel',
    )


def add_reading(parser: ToolParser) -> None:
    """Add how the training images are read, and which of them."""
    parser.add_argument(
        '--skip-bad-data',
        action='store_true',
        help='skip images and annotations that cannot be loaded, log and count them (default: stop with an error '
        'that names the first)',
    )
    parser.add_shared('--shards')
    parser.add_integer(
        '--shuffle-shards',
        minimum=1,
        nargs='?',
        const=8,
        metavar='N',
        help='with --shards: read the shards in random order and shuffle the images of N at a time, not of all '
        '(%(const)s if you give no N)',
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        '--balance-classes',
        action='store_true',
        help='segmentors: weight the pixels of rare classes more',
    )
    chosen.add_argument(
        '--fraction',
        type=float,
        metavar='F',
        help='classifiers: train on this fraction of the images of each class, for 1 / F times the epochs (ConViT, '
        'table 2)',
    )


@run_tool
def main() -> None:
    args = parse_args()
    # Bad entries are left out and counted where --skip-bad-data asks for it; else the first one is an error.
    data = data_arguments(args, problems=[] if args.skip_bad_data else None)
    config = read_config(args, data)
    notes = [config.class_balance] if args.balance_classes else []
    notes += check_annotations(config, ('train_dataloader', 'val_dataloader'), args.skip_bad_data)
    place = config.filename
    if args.backbone:
        place = f'configs/timm/{Path(args.config).stem}_{args.backbone.rpartition("/")[2]}.py'
    config.work_dir = args.work_dir or config.get('work_dir') or default_work_dir(place, args.mini, data)
    model = model_of(config)
    if args.load_from:
        config.load_from = args.load_from
        config.resume = False  # the config of a work dir whose training was resumed says so
    set_randomness(config, args.deterministic)
    if args.shuffle_shards:
        if not args.shards:
            raise InputError('--shuffle-shards needs the folder of shards: add --shards DIR')
        shuffle_shards(config, args.shuffle_shards)
    if args.fraction is not None:
        set_fraction(config, args.fraction)
    restarted = is_restart() and latest_checkpoint(config.work_dir)
    set_resume(config, 'auto' if restarted else args.resume, model.state_dict())
    set_start(config, model)
    if not config.get('resume'):
        check_initial_weights(config)
    set_computation(
        config,
        amp=args.amp,
        strategy=args.strategy,
        compile=args.compile,
        cuda_graphs=args.cuda_graphs,
        options=args.cfg_options,
    )
    if args.skip_bad_data:
        interval = config.get('default_hooks', {}).get('logger', {}).get('interval', 10)
        add_hook(config, 'SkipBadDataHook', interval=interval)
    set_trackers(config, args.log)

    if args.dry_run:
        if is_main_process():
            print('\n'.join([*config.get('own_data', []), *notes]))
        dry_run(config)
        return
    is_first = rank_and_size(args.launcher)[0] == 0
    with locked(config.work_dir, WAIT if restarted else 0) if is_first else nullcontext():
        if is_first and not args.resume and not restarted:
            # Another training may have come and gone since `set_resume`.
            check_nothing_there(config.work_dir)
        if data and is_first:
            keep_data_files(config, config.work_dir)
        train(config, args, notes)


def read_config(args: argparse.Namespace, data: DataArguments | None) -> Config:
    """The config with what the command line says of data, model and schedule."""
    options = dict(args.cfg_options or {})
    for key, value in {'env_cfg.dist_cfg.timeout': args.hang_timeout, 'randomness.seed': args.seed}.items():
        if value is not None:
            options[key] = value
    return load_config(
        args.config,
        data=data,
        mini=args.mini,
        epochs=args.epochs,
        from_scratch=args.from_scratch,
        balance=args.balance_classes,
        backbone=args.backbone,
        cfg_options=options,
        dataloaders=('train_dataloader', 'val_dataloader'),
        shards=args.shards,
        launcher=args.launcher,
    )


def train(config: Config, args: argparse.Namespace, notes: list[str]) -> None:
    """Train with a config that is complete; the notes are logged."""
    with failures_in_one_line(config) as hook:
        runner = build_runner(config)
        if config.get('resume'):
            # The config keeps them, because it can start another training from the work dir.
            forget_initial_weights(runner.model)
        runner.register_hook(hook)
        runner.logger.info(f'seed: {runner.seed}' + ('' if args.seed is None else ', as asked for'))
        for line in (*config.get('own_data', []), *notes):
            runner.logger.info(line)
        warn_if_unseeded(runner)
        with readable_log(runner), summarised(runner):
            runner.train()
        if hook.is_first:
            runner.logger.warning(
                f'nothing was left to train: {config.load_from} has all steps that train_cfg asks for'
            )
        if is_main_process():
            log_next_commands(runner)


def log_next_commands(runner: Runner | FlexibleRunner) -> None:
    """Log the best checkpoint, or else the latest one, and the commands that use it, if there is one."""
    known = runner.message_hub.runtime_info
    best = next((path for key, path in known.items() if key.startswith('best_ckpt') and path), None)
    checkpoint = best or latest_checkpoint(runner.work_dir)
    if checkpoint is None:
        return

    def shortest(path: object) -> str:
        return str(path) if '://' in str(path) else min(str(path), os.path.relpath(path), key=len)

    def tool(name: str) -> list[str]:
        return (
            ['bioattn', name] if ToolParser.command else ['python', shortest(Path(__file__).with_name(f'{name}.py'))]
        )

    files = [shortest(Path(runner.work_dir, Path(runner.cfg.filename).name)), shortest(checkpoint)]
    score = f', {known["best_score"]:.4g}' if 'best_score' in known else ''
    lines = [f'{"best" if best else "latest"} checkpoint{score}: {files[1]}', 'next:']
    lines += [f'  {shlex.join([*tool("test"), *files])}', f'  {shlex.join([*tool("predict"), *files])} IMAGE']
    runner.logger.info('\n'.join(['', *lines]))


if __name__ == '__main__':
    main()
