"""A dry run: the first step of a training, to see whether the rest would run and what it would be."""

import math
import tempfile
import warnings
from datetime import timedelta

import torch
from mmengine.config import Config
from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import nn

from ..checkpoints import read_state_dict
from ..checkpoints.loading import other_classes
from ..errors import InputError
from .ema import unwrapped
from .readable_log import groups_table, readable_log
from .runner import build_runner, failures_in_one_line, now
from .step_log import peak_memory


class _Done(Exception):
    """Ends a training after the dry run's step."""


class DryRunHook(Hook):
    """Times the first training step and the prediction for one validation batch, in seconds, and ends the run."""

    priority = 'LOWEST'

    def __init__(self) -> None:
        self.step_seconds = self.loss = math.nan
        self.val_seconds: float | None = None

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch=None) -> None:
        self._start = now()

    @torch.no_grad()
    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        self.step_seconds = now() - self._start
        self.loss = outputs['loss'].item()
        if not math.isfinite(self.loss):
            raise InputError(f'the loss of the first training step is {self.loss}')
        if runner.val_loop is not None:  # predict as the validation loop does
            batch = next(iter(runner.val_dataloader))
            runner.model.eval()
            start = now()
            outputs = runner.model.val_step(batch)
            self.val_seconds = (now() - start) / len(outputs)
            runner.val_evaluator.process(data_samples=outputs, data_batch=batch)
        raise _Done


def dry_run(config: Config) -> None:
    """Build everything, take one training step, predict for one validation image, and print a report.

    The run writes into a temporary folder. Of several processes the main one prints. The config, which is that of the
    training, is changed in place.

    Raises:
        InputError: Something fails; the training would fail, too.
    """
    hook = DryRunHook()
    if config.get('log_level') != 'DEBUG':  # which asks for the traceback of a failure
        config.log_level = 'ERROR'
    with tempfile.TemporaryDirectory(prefix='dry_run_') as folder, warnings.catch_warnings():
        warnings.simplefilter('ignore')
        config.work_dir = folder
        if config.get('visualizer'):  # trackers write elsewhere, too
            config.visualizer.vis_backends = None
        with failures_in_one_line(config):
            try:
                runner = build_runner(config)
                runner.register_hook(hook)
                with readable_log(runner):
                    runner.train()
            except _Done:
                pass
    if not is_main_process():
        return
    if math.isnan(hook.step_seconds):
        print(f'nothing is left to train: {config.load_from} has all steps that train_cfg asks for')
        return
    for name, text in _report(runner, hook).items():
        print(f'{name:<22}{text}')
    print(groups_table(unwrapped(runner.model), runner.optim_wrapper))


def _report(runner: Runner, hook: DryRunHook) -> dict[str, str]:
    config, model = runner.cfg, unwrapped(runner.model)
    backbone = getattr(model, 'backbone', None)
    number, trained = (
        sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad or everything) / 1e6
        for everything in (True, False)
    )
    is_drawn = config.get('randomness', {}).get('seed') is None
    return {
        'config': str(config.filename),
        'model': f'{type(model).__name__} with {type(backbone).__name__}, {number:.1f} M parameters, '
        f'{trained:.1f} M of them trained',
        'weights': _initial_weights(runner, backbone),
        **_schedule(runner, hook),
        'seed': f'{runner.seed}' + ' (drawn: every run draws another)' * is_drawn,
        'first step': f'{hook.step_seconds:.2f} s, loss {hook.loss:.4g}',
        'validation image': 'none' if hook.val_seconds is None else f'{hook.val_seconds:.2f} s',
        'peak memory': f'{peak_memory() / 2**30:.1f} GiB'
        + (' of the GPU' if torch.cuda.is_available() else ', on the CPU'),
    }


def _initial_weights(runner: Runner, backbone: nn.Module | None) -> str:
    """Which files the weights come from, and which of their entries the backbone used."""
    path = runner.cfg.get('load_from')
    if path and runner.cfg.get('resume'):
        return f'resumed from {path}'
    if path:
        left_out = other_classes(read_state_dict(path), unwrapped(runner.model).state_dict())
        return f'all of {path}' + (f', but {len(left_out)} of another number of classes' if left_out else '')
    if loaded := getattr(backbone, 'loaded_weights', None):
        return loaded
    init_cfg = getattr(backbone, 'init_cfg', None)  # of a backbone of another library
    if isinstance(init_cfg, dict) and init_cfg.get('type') == 'Pretrained':
        return f'{init_cfg["checkpoint"]}; {type(backbone).__name__} does not say which entries it used'
    return 'random'


def _schedule(runner: Runner, hook: DryRunHook) -> dict[str, str]:
    loop, loader, size = runner.train_loop, runner.train_dataloader, get_world_size()
    num_images, batch_size = len(loader.dataset), loader.batch_sampler.batch_size
    accumulated = getattr(runner.optim_wrapper, '_accumulative_counts', 1)
    if isinstance(loop, EpochBasedTrainLoop):
        epochs = f'{loop.max_epochs} epochs of {len(loader):,}'
        done, length, unit = loop.epoch, loop.max_epochs, 'epochs'
    else:
        epochs = f'{loop.max_iters * batch_size * size / num_images:.1f} epochs'
        done, length, unit = loop.iter, loop.max_iters, 'iterations'
    rows = {
        'images per step': f'{batch_size * size * accumulated} of {num_images:,}: {batch_size} a process x {size} '
        f'processes x {accumulated} accumulated iterations',
        'iterations': f'{loop.max_iters:,}: {epochs}',
    }
    seconds = (loop.max_iters - loop.iter) * hook.step_seconds
    if hook.val_seconds is not None:
        num_val = len(runner.val_dataloader.dataset)
        rows['validation'] = f'{num_val:,} images after every {loop.val_interval:,} {unit}'
        seconds += (length // loop.val_interval - done // loop.val_interval) * num_val * hook.val_seconds / size
    # The first step also allocates memory and chooses algorithms.
    duration = f'{timedelta(seconds=round(seconds))} at the speed of the first step, which is slower than later ones'
    return rows | {'estimated duration': duration}
