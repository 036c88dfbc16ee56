#!/usr/bin/env python
"""Train a model of any mmdet, mmseg or mmpretrain config."""

import argparse
import os
from contextlib import nullcontext
from pathlib import Path

import bioattn_mm.process_settings  # noqa: F401
from bioattn_mm.cli.restarts import is_restart

import torch
from mmengine.config import Config
from mmengine.dist import is_main_process

from bioattn_mm.cli.command_line import CHECKPOINT_KINDS, ToolParser, run_tool
from bioattn_mm.cli.dry_run import dry_run
from bioattn_mm.cli.readable_log import readable_log
from bioattn_mm.cli.start import WAIT, check_nothing_there, forget_initial_weights, locked, set_resume, set_start
from bioattn_mm.cli.trackers import set_trackers
from bioattn_mm.engine.amp import autocast_dtype
from bioattn_mm.engine.checkpoints import latest_checkpoint
from bioattn_mm.engine.cuda_graphs import set_cuda_graphs
from bioattn_mm.engine.randomness import warn_if_unseeded
from bioattn_mm.engine.step_log import summarised
from bioattn_mm.errors import InputError
from bioattn_mm.run_config.config import default_work_dir, load_config
from bioattn_mm.run_config.data_check import check_annotations
from bioattn_mm.run_config.distributed import rank_and_size, set_strategy
from bioattn_mm.run_config.fractions import set_fraction
from bioattn_mm.run_config.model_check import check_initial_weights, model_of
from bioattn_mm.run_config.own_data import DataArguments, data_arguments, keep_data_files
from bioattn_mm.run_config.runner import build_runner, failures_in_one_line
from bioattn_mm.run_config.shards import shuffle_shards

# Wrappers of an optimizer that --amp takes.
WRAPPERS = ('OptimWrapper', 'AmpOptimWrapper', 'bioattn_mm.BFloat16OptimWrapper')


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'train.py configs/transnext/upernet_tiny_ade20k.py --mini',
        'train.py configs/transnext/upernet_tiny_ade20k.py --dry-run',
        'train.py configs/transnext/upernet_tiny_ade20k.py --resume',
        'train.py configs/transnext/mask_rcnn_tiny_coco.py --data DIR --epochs 20',
        'train.py mask_rcnn --backbone timm/vit_small_patch14_dinov2 --data DIR --epochs 20',
    )
    parser.add_config()
    add_run(parser)
    add_computation(parser)
    add_reading(parser)
    parser.add_log()
    parser.add_config_options()
    parser.add_launcher()
    return parser.parse_args()


def add_run(parser: ToolParser) -> None:
    """Add what is trained, from which weights, how long, and where it is written."""
    parser.add_argument(
        '--backbone',
        metavar='timm/NAME',
        help="any backbone of timm in place of the config's, with timm's weights; CONFIG may then also be mask_rcnn, "
        'dino, mask2former, mask2former_instance or upernet',
    )
    parser.add_data()
    parser.add_integer(
        '--epochs',
        minimum=1,
        metavar='N',
        help='times that each training image is seen; the schedule of the config is stretched to that length '
        "(default: the config's schedule)",
    )
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        '--from-scratch',
        action='store_true',
        help="start from random weights in place of the config's, with one learning rate for all parameters: 2e-4 of "
        'models with queries, 4e-4 of classifiers, of others from 1e-3 for 200 steps to 1e-4 for 20,000 and more',
    )
    start.add_argument(
        '--load-from',
        metavar='CHECKPOINT',
        help=f'start from this checkpoint of a whole model: {CHECKPOINT_KINDS}; also of one with other classes, '
        "whose weights that go by the number of classes are left out (default: the backbone's weights that the "
        'config names)',
    )
    parser.add_argument(
        '--work-dir',
        help='folder for logs and checkpoints (default: work_dirs/SYSTEM/CONFIG, with --data '
        'work_dirs/SYSTEM/CONFIG_DIR, with --mini work_dirs/SYSTEM/CONFIG_mini)',
    )
    parser.add_argument(
        '--dry-run',
        action='store_true',
        help='build everything, take one training step, predict for one validation image, print what the training '
        'will be, and write nothing; if the training would fail, print one line and end with exit code 2',
    )
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='go on from CHECKPOINT; without a value from the latest checkpoint in the work dir, or from the start '
        'if there is none',
    )


def add_computation(parser: ToolParser) -> None:
    """Add how it is computed: precision, compilation, processes, random numbers."""
    parser.add_amp()
    parser.add_argument(
        '--compile',
        nargs='?',
        const='inductor',
        metavar='BACKEND',
        help='compile backbone and neck with torch.compile and this backend, inductor without a value, which takes '
        'minutes: of detectors for all sizes of images, of others for the first one, and at a second one for all',
    )
    parser.add_cuda_graphs()
    parser.add_argument(
        '--strategy',
        metavar='FILE',
        help='config file of a strategy other than data parallel, such as configs/_base_/strategies/fsdp.py; for '
        'several processes',
    )
    parser.add_argument(
        '--hang-timeout',
        type=seconds,
        metavar='SECONDS',
        help='of several processes: end if one waits as long for another, so that tools/dist_train.sh starts again; '
        "the config's env_cfg.dist_cfg.timeout (default: what the config says, 2400 in those of the package)",
    )
    parser.add_argument('--seed', type=seed, help="seed of all random numbers (default: the config's, else drawn)")
    parser.add_argument(
        '--deterministic',
        action='store_true',
        help='the same losses in every run with the same seed; slower, and the run ends with an error that names the '
        'operation if one has no deterministic GPU kernel',
    )


def add_reading(parser: ToolParser) -> None:
    """Add how the training images are read, and which of them."""
    parser.add_argument(
        '--skip-bad-data',
        action='store_true',
        help='leave out images and annotations that cannot be loaded, and log and count them, instead of ending with '
        'an error that names the first',
    )
    parser.add_shards()
    parser.add_integer(
        '--shuffle-shards',
        minimum=1,
        nargs='?',
        const=8,
        metavar='N',
        help='with --shards: read shard after shard in random order, N of them mixed, instead of single images of '
        'all (default without a value: %(const)s)',
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        '--balance-classes',
        action='store_true',
        help='let rare classes count more: of segmentors by weights of their pixels, of detectors and classifiers by '
        'images that come more often in an epoch',
    )
    chosen.add_argument(
        '--fraction',
        type=float,
        metavar='F',
        help='for classification: train on this fraction of the images of each class, the same ones in every run, '
        'for 1 / F times the epochs (schedule, validation and checkpoints, too), so that the network sees as many '
        'images as in the whole training (ConViT, table 2)',
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
        config.resume = False  # which the config of a work dir whose training was resumed says
    set_randomness(config, args.seed, args.deterministic)
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
    set_computation(config, args)
    if args.skip_bad_data:
        set_skip_bad_data(config)
    set_trackers(config, args.log)

    if args.dry_run:
        if is_main_process():
            print('\n'.join([*config.get('own_data', []), *notes]))
        dry_run(config, args.cfg_options)
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
    if args.hang_timeout is not None:
        options['env_cfg.dist_cfg.timeout'] = args.hang_timeout
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


def set_computation(config: Config, args: argparse.Namespace) -> None:
    """Set precision, strategy, compilation and CUDA graphs as the command line says."""
    if args.amp:
        set_amp(config, args.amp)
    if args.strategy and args.cuda_graphs:
        raise InputError('--cuda-graphs goes with data parallel alone: leave out --strategy')
    if args.strategy:
        set_strategy(config, args.strategy, args.cfg_options)
    if config.optim_wrapper.get('type') == 'AmpOptimWrapper' and not torch.cuda.is_available():
        raise InputError("the config's AmpOptimWrapper needs a GPU: on the CPU add --amp bfloat16")
    if args.compile:
        set_compile(config, args.compile)
    if args.cuda_graphs:
        set_cuda_graphs(config, args.cuda_graphs)


def train(config: Config, args: argparse.Namespace, notes: list[str]) -> None:
    """Train with a config that is complete; the notes are logged."""
    with failures_in_one_line(config, args.cfg_options) as hook:
        runner = build_runner(config)
        if config.get('resume'):
            # The config keeps them, because it can start another training from the work dir.
            forget_initial_weights(runner.model)
        runner.register_hook(hook)
        runner.logger.info(f'seed: {runner.seed}' + ('' if args.seed is None else ', as asked for'))
        for line in (*config.get('own_data', []), *notes):
            runner.logger.info(line)
        warn_if_unseeded(runner)
        with readable_log(runner), summarised(runner, log_interval(config)):
            runner.train()
        if hook.is_first:
            runner.logger.warning(
                f'nothing was left to train: {config.load_from} has all steps that train_cfg asks for'
            )


def seconds(text: str) -> float:
    """A time of the command line."""
    value = float(text)
    if not 0 < value < float('inf'):
        raise argparse.ArgumentTypeError(f'expected more than 0 seconds, got {text}')
    return value


def seed(text: str) -> int:
    """A seed of the command line, which NumPy takes, too."""
    value = int(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f'expected a whole number from 0 to 4294967295, got {text}')
    return value


def set_randomness(config: Config, seed: int | None, deterministic: bool) -> None:
    """Set the seed of a run, and use deterministic operations if asked for.

    If neither the command line nor the config has a seed, the Runner draws one for all processes.
    """
    config.randomness = {'seed': None, **config.get('randomness', {})}
    if seed is not None:
        config.randomness.seed = seed
    if deterministic:
        config.randomness.deterministic = True
        # cuBLAS is deterministic only if this is set before it starts.
        os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')


def set_amp(config: Config, dtype: str) -> None:
    """Train in mixed precision, float16 with a loss scale, by default a dynamic one."""
    autocast_dtype(dtype, 'cuda' if torch.cuda.is_available() else 'cpu')
    wrapper = config.optim_wrapper
    kind = wrapper.get('type', 'OptimWrapper')
    if kind not in WRAPPERS:
        raise InputError(f'--amp needs an optim_wrapper of type OptimWrapper, this config has {kind}')
    if dtype == 'float16':
        wrapper.update(type='AmpOptimWrapper', dtype=dtype)
        wrapper.setdefault('loss_scale', 'dynamic')
        return
    wrapper.type = 'bioattn_mm.BFloat16OptimWrapper'
    wrapper.pop('dtype', None)
    wrapper.pop('loss_scale', None)


def set_compile(config: Config, backend: str) -> None:
    """Compile backbone and neck with a backend of torch.compile."""
    known = torch.compiler.list_backends(exclude_tags=())
    if backend not in known:
        raise InputError(f'torch.compile has no backend {backend!r}: expected one of {", ".join(known)}')
    # Images of detectors have many sizes; those of others have one in training.
    dynamic = True if config.default_scope == 'mmdet' else None
    hook = dict(type='bioattn_mm.CompileHook', backend=backend, dynamic=dynamic)
    config.custom_hooks = [*config.get('custom_hooks', []), hook]


def set_skip_bad_data(config: Config) -> None:
    """Leave out training samples that cannot be loaded, and log their number as often as the losses."""
    hooks = config.get('custom_hooks', [])
    if any(hook.type == 'bioattn_mm.SkipBadDataHook' for hook in hooks):
        return
    config.custom_hooks = [*hooks, dict(type='bioattn_mm.SkipBadDataHook', interval=log_interval(config))]


def log_interval(config: Config) -> int:
    """Iterations from one line of the log to the next."""
    return config.get('default_hooks', {}).get('logger', {}).get('interval', 10)


if __name__ == '__main__':
    main()
