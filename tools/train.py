#!/usr/bin/env python
"""Train a model of any mmdet, mmseg or mmpretrain config."""

import argparse
import os
from importlib.util import find_spec
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from torch import Tensor

from bioattn_mm.checkpoints import check_fit, read_checkpoint, weights_of
from bioattn_mm.cli.command_line import parse, run_tool
from bioattn_mm.cli.config import default_work_dir, load_config
from bioattn_mm.cli.dry_run import dry_run
from bioattn_mm.cli.model_check import check_initial_weights, state_dict_of
from bioattn_mm.cli.pipelines import name_host_transforms
from bioattn_mm.cli.readable_log import readable_log
from bioattn_mm.engine.checkpoints import latest_checkpoint
from bioattn_mm.engine.randomness import warn_if_unseeded
from bioattn_mm.engine.strategies import set_strategy
from bioattn_mm.errors import InputError


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog='Example: python tools/train.py configs/transnext/upernet_tiny_ade20k.py --mini',
    )
    parser.add_argument('config', help='config file, such as configs/transnext/upernet_tiny_ade20k.py')
    parser.add_argument(
        '--work-dir',
        help='folder for logs and checkpoints; default: work_dirs/SYSTEM/CONFIG, with --mini '
        'work_dirs/SYSTEM/CONFIG_mini',
    )
    parser.add_argument(
        '--dry-run',
        action='store_true',
        help='build everything, take one training step, predict for one validation image, print what the long run '
        'will be, and write nothing; ends with exit code 2 and one line where the long run would fail',
    )
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='go on from CHECKPOINT, or without a value from the latest one in the work dir (from the start if none)',
    )
    parser.add_argument(
        '--amp',
        nargs='?',
        const='float16',
        choices=['float16', 'bfloat16'],
        help='mixed-precision training in this dtype, float16 without a value (needs a GPU)',
    )
    parser.add_argument(
        '--compile',
        nargs='?',
        const='inductor',
        metavar='BACKEND',
        help='compile the backbone with torch.compile, by its inductor without a value; minutes for each input size',
    )
    parser.add_argument(
        '--strategy',
        metavar='FILE',
        help='train in another way than data parallel: configs/_base_/strategies/fsdp.py or another such config',
    )
    parser.add_argument('--seed', type=int, help='seed of all randomness; default: that of the config, or drawn')
    parser.add_argument(
        '--deterministic',
        action='store_true',
        help='the same losses in every run with the same seed; slower, and an operation that has no such kernel on a '
        'GPU ends the run with its name',
    )
    parser.add_argument(
        '--skip-bad-data',
        action='store_true',
        help='train without the images and annotations that cannot be loaded, instead of ending with an error that '
        'names the first; they are logged and counted',
    )
    parser.add_argument(
        '--tensorboard', action='store_true', help='write curves for TensorBoard, too: tensorboard --logdir WORK_DIR'
    )
    return parse(parser)


@run_tool
def main() -> None:
    args = parse_args()
    config = load_config(args, ('train_dataloader', 'val_dataloader'))

    config.work_dir = args.work_dir or config.get('work_dir') or default_work_dir(args.config, args.mini)
    config.launcher = args.launcher
    own = state_dict_of(config)
    check_initial_weights(config)
    set_randomness(config, args.seed, args.deterministic)
    set_resume(config, args.resume, own)
    if args.amp:
        set_amp(config, args.amp)
    if args.strategy:
        set_strategy(config, args.strategy)
    if args.compile:
        set_compile(config, args.compile)
    if args.skip_bad_data:
        set_skip_bad_data(config)
    if args.tensorboard:
        set_tensorboard(config)

    if args.dry_run:
        dry_run(config)
        return
    runner_type = RUNNERS.get(config.runner_type) if 'runner_type' in config else Runner
    runner = runner_type.from_cfg(config)
    # The config in the work dir and in the checkpoints is also for mmdet's and mmseg's inference APIs.
    name_host_transforms(runner.cfg)
    runner.dump_config()
    runner.logger.info(f'seed: {runner.seed}' + ('' if args.seed is None else ', as asked for'))
    warn_if_unseeded(runner)
    with readable_log(runner):
        runner.train()


def set_randomness(config: Config, seed: int | None, deterministic: bool) -> None:
    """Seed the run, and choose operations that give the same sums every time.

    Without a seed on the command line or in the config, the Runner draws one, the same for all processes.
    """
    config.randomness = {'seed': None, **config.get('randomness', {})}
    if seed is not None:
        config.randomness.seed = seed
    if deterministic:
        config.randomness.deterministic = True
        # What cuBLAS needs, before it starts.
        os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')


def set_resume(config: Config, resume: str | None, own: dict[str, Tensor]) -> None:
    """Go on from a checkpoint that fits the state dict `own`, or make sure that a fresh start overwrites none."""
    if resume is None:
        existing = sorted(path.name for path in Path(config.work_dir).glob('*.pth'))
        if existing:
            raise InputError(
                f'{config.work_dir} already holds {existing[-1]}: add --resume to go on from it, '
                f'or --work-dir for another folder'
            )
        return
    path = latest_checkpoint(config.work_dir) if resume == 'auto' else resume
    if path is None:  # the run was ended before its first one
        return
    if not Path(path).exists():
        raise InputError(f'checkpoint to resume from not found: {path}')
    config.load_from = path
    config.resume = True
    if Path(path).is_dir():  # of DeepSpeed, which checks it by itself
        return
    checkpoint = read_checkpoint(path)
    check_fit(path, weights_of(path, checkpoint), own, strict=True)
    meta = checkpoint.get('meta') or {}
    if 'iter' not in meta:
        raise InputError(
            f'{path} holds weights and not where a training stood: to start from it, leave out --resume and add '
            f'--cfg-options load_from={path}'
        )
    if config.randomness.seed is None:
        # The run drew its seed; what reads the data takes it before mmengine resumes.
        config.randomness.seed = meta['seed']


def set_amp(config: Config, dtype: str) -> None:
    """Train in mixed precision, float16 with a dynamic loss scale."""
    if not torch.cuda.is_available():
        raise InputError('--amp needs a GPU: none is visible to PyTorch; leave it out to train in float32')
    wrapper = config.optim_wrapper.get('type', 'OptimWrapper')
    if wrapper not in ('OptimWrapper', 'AmpOptimWrapper'):
        raise InputError(f'--amp needs an optim_wrapper of type OptimWrapper, this config has {wrapper}')
    config.optim_wrapper.type = 'AmpOptimWrapper'
    config.optim_wrapper.setdefault('dtype', dtype)
    # bfloat16 has the range of float32 and needs none.
    config.optim_wrapper.setdefault('loss_scale', 'dynamic' if dtype == 'float16' else 1.0)


def set_compile(config: Config, backend: str) -> None:
    """Compile the backbone."""
    known = torch.compiler.list_backends(exclude_tags=())
    if backend not in known:
        raise InputError(f'no compiler {backend!r} for --compile: expected one of {", ".join(known)}')
    hook = dict(type='bioattn_mm.CompileBackboneHook', backend=backend)
    config.custom_hooks = [*config.get('custom_hooks', []), hook]


def set_skip_bad_data(config: Config) -> None:
    """Leave out training samples that cannot be loaded, and log them as often as the losses."""
    hooks = config.get('custom_hooks', [])
    if any(hook.type == 'bioattn_mm.SkipBadDataHook' for hook in hooks):
        return
    interval = config.get('default_hooks', {}).get('logger', {}).get('interval', 10)
    config.custom_hooks = [*hooks, dict(type='bioattn_mm.SkipBadDataHook', interval=interval)]


def set_tensorboard(config: Config) -> None:
    """Write what is logged for TensorBoard, beside the local files."""
    if find_spec('tensorboard') is None:
        raise InputError('--tensorboard needs a package that is not installed: pip install tensorboard')
    visualizer = config.setdefault('visualizer', dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')]))
    backends = visualizer.get('vis_backends') or []
    if not any(backend['type'] == 'TensorboardVisBackend' for backend in backends):
        visualizer.vis_backends = [*backends, dict(type='TensorboardVisBackend')]


if __name__ == '__main__':
    main()
