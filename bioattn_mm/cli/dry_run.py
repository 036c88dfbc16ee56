"""A dry run: the first step of a training, to see whether the rest would run and what it would be."""

import math
import tempfile
import warnings
from collections import Counter
from datetime import timedelta

import torch
from mmengine.config import Config
from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.optim import AmpOptimWrapper, BaseOptimWrapper
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..checkpoints import other_classes, read_state_dict
from ..engine.amp import BFloat16OptimWrapper
from ..engine.ema import unwrapped
from ..engine.step_log import peak_memory
from ..engine.sync_batch_norm import CPUSyncBatchNorm
from ..errors import InputError
from ..run_config.pipelines import data_preprocessor_of, image_kind
from ..run_config.runner import build_runner, failures_in_one_line, now
from .readable_log import groups_table, optimizer_groups, readable_log


class _Done(Exception):
    """Ends a training after the dry run's step."""


class DryRunHook(Hook):
    """Times the first training step and the prediction for one validation batch, and ends the run.

    Attributes:
        step_seconds: Time of the step in seconds, without loading the images.
        val_seconds: Time of the prediction in seconds an image; None if the config has no validation.
        loss: Loss of the step.
    """

    priority = 'LOWEST'

    def __init__(self) -> None:
        self.step_seconds = self.loss = math.nan
        self.val_seconds: float | None = None

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch=None) -> None:
        self._start = now()

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        self.step_seconds = now() - self._start
        self.loss = outputs['loss'].item()
        if not math.isfinite(self.loss):
            raise InputError(f'the loss of the first training step is {self.loss}')
        if runner.val_loop is not None:
            self._predict(runner)
        raise _Done

    @torch.no_grad()
    def _predict(self, runner: Runner) -> None:
        """Predict for one validation batch as the validation loop does, and pass the result to the metric."""
        batch = next(iter(runner.val_dataloader))
        runner.model.eval()
        start = now()
        outputs = runner.model.val_step(batch)
        self.val_seconds = (now() - start) / len(outputs)
        runner.val_evaluator.process(data_samples=outputs, data_batch=batch)


def dry_run(config: Config, options: dict[str, object] | None = None) -> None:
    """Build everything, take one training step, predict for one validation image, and print a report.

    The run writes into a temporary folder, which is removed. In a distributed run every process takes part, and the
    main process prints.

    Args:
        config: As for the training itself; changed in place.
        options: Those of `--cfg-options`, for messages.

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
        with failures_in_one_line(config, options):
            try:
                runner = build_runner(config)
                runner.register_hook(hook)
                with readable_log(runner):
                    runner.train()
            except _Done:
                pass
    if is_main_process() and math.isnan(hook.step_seconds):
        print(f'nothing is left to train: {config.load_from} has all steps that train_cfg asks for')
    elif is_main_process():
        for name, text in report(runner, hook):
            print(f'{name:<22}{text}')
        print(groups_table(optimizer_groups(unwrapped(runner.model), runner.optim_wrapper)))


def report(runner: Runner, hook: DryRunHook) -> list[tuple[str, str]]:
    """What the training would be: pairs of a name and a text."""
    config, model = runner.cfg, unwrapped(runner.model)
    backbone = getattr(model, 'backbone', None)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    num_trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    rows = [
        ('config', str(config.filename)),
        ('model', f'{type(model).__name__} with {type(backbone).__name__}, {num_parameters / 1e6:.1f} M parameters, '
         f'{num_trained / 1e6:.1f} M of them trained'),
        ('weights', initial_weights(runner, backbone)),
        *schedule(runner, hook),
        ('seed', f'{runner.seed}'
         + ('' if config.get('randomness', {}).get('seed') is not None else ' (drawn: every run draws another)')),
        ('precision', precision(runner.optim_wrapper)),
        ('pixel values', pixel_normalisation(config)),
        ('normalisation layers', normalisation_layers(model)),
    ]  # fmt: skip
    bias_modes = {module.bias_mode for module in model.modules() if hasattr(module, 'bias_mode')}
    if bias_modes:
        rows.append(('position bias', ', '.join(sorted(bias_modes))))
    rows += [
        ('first step', f'{hook.step_seconds:.2f} s, loss {hook.loss:.4g}'),
        ('validation image', 'none' if hook.val_seconds is None else f'{hook.val_seconds:.2f} s'),
        ('peak memory', memory_taken()),
    ]
    return rows


def initial_weights(runner: Runner, backbone: nn.Module | None) -> str:
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


def schedule(runner: Runner, hook: DryRunHook) -> list[tuple[str, str]]:
    """Numbers of images and iterations, and the estimated duration."""
    loop, loader = runner.train_loop, runner.train_dataloader
    num_images, batch_size = len(loader.dataset), loader.batch_sampler.batch_size
    accumulated = getattr(runner.optim_wrapper, '_accumulative_counts', 1)
    images = (
        f'{batch_size * get_world_size() * accumulated} of {num_images:,}: {batch_size} a process x '
        f'{get_world_size()} processes x {accumulated} accumulated iterations'
    )
    if isinstance(loop, EpochBasedTrainLoop):
        iterations = f'{loop.max_iters:,}: {loop.max_epochs} epochs of {len(loader):,}'
        length, unit = loop.max_epochs, 'epochs'
    else:
        iterations = f'{loop.max_iters:,}: {loop.max_iters * batch_size * get_world_size() / num_images:.1f} epochs'
        length, unit = loop.max_iters, 'iterations'
    rows = [('images per step', images), ('iterations', iterations)]
    seconds = loop.max_iters * hook.step_seconds
    if hook.val_seconds is not None:
        num_val = len(runner.val_dataloader.dataset)
        rows.append(('validation', f'{num_val:,} images after every {loop.val_interval:,} {unit}'))
        seconds += length // loop.val_interval * num_val * hook.val_seconds / get_world_size()
    # The first step also allocates memory and chooses algorithms.
    duration = f'{timedelta(seconds=round(seconds))} at the speed of the first step, which is slower than later ones'
    rows.append(('estimated duration', duration))
    return rows


def precision(wrapper: BaseOptimWrapper) -> str:
    """The dtype in which most of a training step is computed."""
    if isinstance(wrapper, BFloat16OptimWrapper):
        return 'mixed, bfloat16'
    if isinstance(wrapper, AmpOptimWrapper):
        return f'mixed, {str(wrapper.cast_dtype or torch.float16).removeprefix("torch.")} with a loss scale'
    return 'float32'


def pixel_normalisation(config: Config) -> str:
    """Channel order, mean and standard deviation that pixel values are normalised with."""
    preprocessor = data_preprocessor_of(config)
    if not preprocessor.get('mean'):
        return 'not normalised'
    is_rgb = preprocessor.get('bgr_to_rgb') or preprocessor.get('to_rgb')
    order = 'channels as in the files' if image_kind(config) else 'RGB' if is_rgb else 'BGR'
    return f'{order}, mean {list(preprocessor["mean"])}, standard deviation {list(preprocessor["std"])}'


def normalisation_layers(model: nn.Module) -> str:
    """Number of normalisation layers of each kind; a single process has BatchNorm in place of SyncBN.

    And the parts behind the backbone that have convolutions and no such layer: they learn little from random weights.
    """
    kinds = {
        'SyncBN': (nn.SyncBatchNorm, CPUSyncBatchNorm),
        'BatchNorm': _BatchNorm,
        'LayerNorm': nn.LayerNorm,
        'GroupNorm': nn.GroupNorm,
    }

    def count(part: nn.Module) -> Counter:
        return Counter(
            name
            for module in part.modules()
            for name in [name for name, kind in kinds.items() if isinstance(module, kind)][:1]
        )

    without = [
        name
        for name, part in model.named_children()
        if name != 'backbone' and not count(part) and any(isinstance(module, nn.Conv2d) for module in part.modules())
    ]
    text = ', '.join(f'{number} {name}' for name, number in count(model).most_common()) or 'none'
    return text + (f'; none in {", ".join(without)}' if without else '')


def memory_taken() -> str:
    """Peak memory of the process: on its GPU, if there is one, else in RAM."""
    return f'{peak_memory() / 2**30:.1f} GiB' + (' of the GPU' if torch.cuda.is_available() else ', on the CPU')
