"""One line of JSON for each training step (mmengine logs means), and a summary of the run's health at its end."""

import json
import logging
import math
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import Tensor

from ..runtime.files import atomic_write, without_nan
from .health import health, health_table, read_lines

# Name of the file in the work dir.
FILE = 'steps.jsonl'
# A metric that is not finite means this.
NO_METRIC = 'there was nothing to compare with, such as when no pixel of the images is labelled'


class StepLogHook(Hook):
    """Write a line of JSON for each training step to `steps.jsonl` in the work dir; docs/training.md has its keys.

    mmengine's `scalars.json` has means over the steps of `LoggerHook.interval`, of a single start: it does not show a
    stall, one loss that is not finite, or a restart. Whoever watches a run, and `benchmarks/`, read these lines.

    Other lines are `{"step": 10, "start": {...}}` for each start of the run, validations with their metrics, and
    `{"step": 20, "summary": {...}}` for each end (see `health`). A resumed run goes on in the file, without the steps
    after the one that it resumes from.
    """

    # The hook runs before all others.
    priority = 'HIGHEST'

    def __init__(self) -> None:
        self.file: BinaryIO | None = None  # only rank 0 has a file
        self.unwritten: dict | None = None
        self.was_not_finite = False

    def before_train(self, runner: Runner) -> None:
        runner.register_hook(_AfterOtherHooks(self))
        if is_main_process():
            path = Path(runner.work_dir, FILE)
            without_later_steps(path, runner.iter)
            self.file = path.open('ab', buffering=0)  # a line is in the file when it is written
            start = dict(
                time=time.strftime('%Y-%m-%dT%H:%M:%S%z'),
                log=runner.timestamp,
                host=socket.gethostname(),
                processes=get_world_size(),
                resumed=runner.iter > 0,
            )
            self.write(dict(step=runner.iter, start=start))
        self.rates = list(runner.optim_wrapper.get_lr())
        self.clock = time.perf_counter()
        self.done = runner.iter

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch=None) -> None:
        self.data_time = time.perf_counter() - self.clock

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        inputs = data_batch.get('inputs') if isinstance(data_batch, dict) else None
        # The peak of memory is read here, because mmengine resets it when it logs.
        self.unwritten = dict(
            step_end=time.perf_counter(),
            memory=peak_memory() // 2**20,
            images=len(inputs) if isinstance(inputs, (list, tuple, Tensor)) else None,
            losses=list(outputs or ()),
        )

    def write_step(self, runner: Runner) -> None:
        """Write the line of the step that was just done, after all other hooks."""
        step, self.unwritten = self.unwritten, None
        now = time.perf_counter()
        seconds, self.clock = now - self.clock, now
        self.done = runner.iter + 1
        if self.file is None:
            return
        line = dict(step=self.done, iter=self.done)
        images = step['images'] and step['images'] * get_world_size()
        if isinstance(runner.train_loop, EpochBasedTrainLoop):
            line['epoch'] = runner.epoch + 1
        elif images and isinstance(runner.train_dataloader.dataset, Sized):
            line['epoch'] = 1 + runner.iter * images // len(runner.train_dataloader.dataset)
        # mmengine's RuntimeInfoHook has brought the losses from the GPU: they are not read from there twice.
        logged = runner.message_hub.log_scalars
        for key in (*step['losses'], *self.rates, 'grad_norm'):
            if f'train/{key}' in logged:
                line[key] = logged[f'train/{key}'].current()
        times = dict(time=seconds, data_time=self.data_time, hook_time=now - step['step_end'])
        line.update({key: round(value, 6) for key, value in times.items()})
        if images:
            line['images_per_second'] = round(images / seconds, 3)
        line['memory'] = step['memory']
        self.write(line)
        self.say_not_finite({key: line[key] for key in step['losses'] if key in line})

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        if self.file is not None and metrics:
            self.write(dict(numbers_of(metrics), step=runner.iter))
            if names := not_finite(metrics):
                warn(f'{names} of the validation after step {runner.iter}: {NO_METRIC}')

    def say_not_finite(self, losses: dict[str, float]) -> None:
        """Log a warning where losses are not finite, and were in the step before."""
        names = not_finite(losses)
        if names and not self.was_not_finite:
            warn(
                f'{names} at step {self.done}: if all that follow are, too, the training has failed: lower '
                'optim_wrapper.optimizer.lr, set optim_wrapper.clip_grad.max_norm, or look into the data'
            )
        self.was_not_finite = bool(names)

    def end(self, runner: Runner, reason: str) -> None:
        """End the file with a summary, which has the reason of the end and is logged, too."""
        if self.unwritten is not None:  # another hook ended the run after the optimizer's step
            self.write_step(runner)
        if self.file is None:
            return
        summary = dict(ended=reason, **health(read_lines(Path(self.file.name))))
        self.write(dict(step=self.done, summary=summary))
        self.file.close()
        if summary['steps']:
            print_log('\n' + health_table(summary), 'current')

    def write(self, line: dict) -> None:
        self.file.write(f'{json.dumps(without_nan(line), allow_nan=False)}\n'.encode())


class _AfterOtherHooks(Hook):
    """The part of `StepLogHook` that comes after all other hooks."""

    priority = 'LOWEST'

    def __init__(self, log: StepLogHook) -> None:
        self.log = log

    def before_train(self, runner: Runner) -> None:
        self.log.clock = time.perf_counter()

    # A step does not include the time of a validation.
    after_train_epoch = after_val = before_train

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        self.log.write_step(runner)


@contextmanager
def summarised(runner: Runner) -> Iterator[None]:
    """Context of a training with a `StepLogHook`, which ends with a summary, also if it fails or is told to end."""
    hook, reason = StepLogHook(), 'finished'
    runner.register_hook(hook)
    try:
        yield
    except BaseException as error:
        number = error.code - 128 if isinstance(error, SystemExit) and isinstance(error.code, int) else None
        lines = str(error).strip().splitlines()
        reason = type(error).__name__ + (f': {lines[-1]}' if lines else '')
        if number in set(signal.Signals):
            reason = signal.Signals(number).name
        raise
    finally:
        hook.end(runner, reason)


def without_later_steps(path: Path, step: int) -> None:
    """Remove the lines of a file's steps after one from which a run goes on."""
    if path.is_file():
        with atomic_write(path) as kept:
            for line in read_lines(path):
                if line['step'] <= step or 'start' in line or 'summary' in line:
                    kept.write(f'{json.dumps(line)}\n'.encode())


def warn(message: str) -> None:
    print_log(message, 'current', logging.WARNING)


def peak_memory() -> int:
    """Peak memory of this process in bytes: on its GPU, if there is one, else in RAM."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    try:
        import resource
    except ImportError:  # Windows, where it stays unknown
        return 0
    unit = 1 if sys.platform == 'darwin' else 1024  # kibibytes on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def not_finite(values: dict) -> str:
    """The numbers that are NaN or infinite, as in 'loss is nan, loss_mask is inf'; an empty string without any."""
    return ', '.join(f'{name} is {value}' for name, value in numbers_of(values).items() if not math.isfinite(value))


def numbers_of(metrics: dict) -> dict[str, float]:
    """The metrics that are numbers; others are lists of classes or tables."""
    return {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float, np.number))}
