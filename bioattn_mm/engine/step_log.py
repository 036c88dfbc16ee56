"""One line of JSON for each training step, for machines, and a summary of the run's health at its end."""

import json
import logging
import math
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from mmengine.dist import all_gather, get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from ..files import atomic_write, without_nan
from ..registry import HOOKS
from .ema import unwrapped
from .health import health, health_table, read_lines
from .hooks import SkipBadDataHook
from .sync_batch_norm import CPUSyncBatchNorm

# Name of the file in the work dir.
FILE = 'steps.jsonl'
# Lines wait in memory for at most so long, in seconds.
FLUSH_AFTER = 10
# What a metric that is not finite means.
NO_METRIC = 'there was nothing to compare with, such as when no pixel of the images is labelled'
# Modules that exchange something with other ranks in the forward pass.
EXCHANGING = (nn.SyncBatchNorm, CPUSyncBatchNorm, FSDPModule)


@HOOKS.register_module()
class StepLogHook(Hook):
    """Write a line of JSON for each training step to `steps.jsonl` in the work dir, and a summary when the run ends.

    Lines of steps have `iter` and `step`, both the number of steps done, as mmengine names it; `epoch`, the pass over
    the data, from 1; the losses, learning rates and `grad_norm` under the names of mmengine's log, and

    - `time`: seconds from the end of the last step to the end of this one, validations left out
    - `data_time`: seconds of it before the batch was there; `hook_time`: seconds of it after the optimizer's step, in
      which hooks log and save checkpoints
    - `images_per_second`: of all processes
    - `memory`: peak MiB of this process, on its GPU, if there is one (there, since mmengine's last log line)
    - `skipped_step`: true if the loss scaler left the optimizer's step out
    - of several processes, at every `interval`-th step: `rank_skew`, seconds a step of the slowest rank minus those
      of the fastest, the number of the slowest as `slowest_rank`, and `max_memory` of all ranks (see `OwnTime`)

    null stands for NaN and infinity. Other lines: `{"step": 10, "start": {...}}` for each start of the run,
    validations with their metrics, and `{"step": 20, "summary": {...}}` for each end (see `health`). A resumed run
    goes on in the file, without the steps after the one that it resumes from. Rank 0 writes; where that fails, as on
    a full disk, the training goes on without.

    mmengine calls no hook when a training fails: in `summarised` it ends with a summary, too.

    Args:
        interval: Steps between two exchanges of the ranks' times, and lines that wait in memory at most; the log's
            interval is a good one.
    """

    # The hook runs before others: what they do after a step is not part of it.
    priority = 'HIGHEST'

    def __init__(self, interval: int = 50) -> None:
        self.interval = interval
        self.file: StepFile | None = None
        self.own_time: OwnTime | None = None
        self.unwritten: dict | None = None
        self.done = 0
        self.was_not_finite = False

    def before_train(self, runner: Runner) -> None:
        runner.register_hook(_AfterOtherHooks(self))
        if get_world_size() > 1:
            self.own_time = OwnTime(runner.model)
        if is_main_process():
            self.file = StepFile(Path(runner.work_dir) / FILE, runner.iter, self.interval)
            start = dict(
                time=time.strftime('%Y-%m-%dT%H:%M:%S%z'),
                log=runner.timestamp,
                host=socket.gethostname(),
                processes=get_world_size(),
                resumed=runner.iter > 0,
            )
            self.file.write(dict(step=runner.iter, start=start), flush=True)
        self.rates = list(runner.optim_wrapper.get_lr())
        self.updates = OptimizerSteps(runner.optim_wrapper)
        self.clock = time.perf_counter()
        self.done = runner.iter

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch=None) -> None:
        self.data_time = time.perf_counter() - self.clock
        if self.own_time is not None:
            self.own_time.start()

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if self.own_time is not None:
            self.own_time.stop(self.data_time)
        # Now, because mmengine resets the peak when it logs.
        self.unwritten = dict(
            step_end=time.perf_counter(),
            memory=peak_memory() // 2**20,
            images=num_images(data_batch),
            losses=list(outputs or ()),
            skipped=self.updates.was_skipped(),
        )

    def after_step(self, runner: Runner) -> None:
        """After all other hooks of a step."""
        ranks = {}
        if self.own_time is not None and self.every_n_train_iters(runner, self.interval):
            ranks = self.own_time.compare(self.unwritten['memory'])
        self.write_step(runner, ranks)

    def write_step(self, runner: Runner, ranks: dict) -> None:
        """Write the line of the step that was just done."""
        step, self.unwritten = self.unwritten, None
        now = time.perf_counter()
        seconds, self.clock = now - self.clock, now
        if self.file is None:
            return
        self.done = runner.iter + 1
        line = dict(step=self.done, iter=self.done)
        images = step['images'] and step['images'] * get_world_size()
        if isinstance(runner.train_loop, EpochBasedTrainLoop):
            line['epoch'] = runner.epoch + 1
        elif images and isinstance(runner.train_dataloader.dataset, Sized):
            line['epoch'] = 1 + runner.iter * images // len(runner.train_dataloader.dataset)
        # RuntimeInfoHook has brought the losses from the GPU.
        logged = runner.message_hub.log_scalars
        for key in (*step['losses'], *self.rates, 'grad_norm'):
            if f'train/{key}' in logged:
                line[key] = logged[f'train/{key}'].current()
        times = dict(time=seconds, data_time=self.data_time, hook_time=now - step['step_end'])
        line.update({key: round(value, 6) for key, value in times.items()})
        if images:
            line['images_per_second'] = round(images / seconds, 3)
        line['memory'] = step['memory']
        if step['skipped']:
            line['skipped_step'] = True
        self.file.write({**line, **ranks})
        self.say_not_finite(self.done, {key: line[key] for key in step['losses'] if key in line})

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        if self.file is not None and metrics:
            self.file.write(dict(numbers_of(metrics), step=runner.iter))
            if names := not_finite(metrics):
                print_log(
                    f'{names} of the validation after step {runner.iter}: {NO_METRIC}', 'current', logging.WARNING
                )

    def say_not_finite(self, step: int, losses: dict[str, float]) -> None:
        """Log a warning at the first step with losses that are not finite, and at each after one whose were."""
        names = not_finite(losses)
        if names and not self.was_not_finite:
            print_log(
                f'{names} at step {step}: if all that follow are, too, the training has failed: lower '
                'optim_wrapper.optimizer.lr, set optim_wrapper.clip_grad.max_norm, or look into the data',
                'current',
                logging.WARNING,
            )
        self.was_not_finite = bool(names)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        # A run that is killed and goes on from here has the lines of all steps before.
        if self.file is not None:
            self.file.flush_next = True

    def end(self, runner: Runner, reason: str) -> None:
        """End the file with a summary, which is logged, too; does nothing if that was done.

        Args:
            runner: The runner.
            reason: Why the run ended, such as 'finished'.
        """
        if self.unwritten is not None:  # another hook ended the run after the optimizer's step
            self.write_step(runner, {})
        file, self.file = self.file, None
        if file is None:
            return
        file.flush()
        if file.failed or not file.path.is_file():
            return
        skipping = [hook for hook in runner.hooks if isinstance(hook, SkipBadDataHook)]
        skipped = sum(hook.num_skipped() for hook in skipping) if skipping else None
        summary = dict(ended=reason, **health(read_lines(file.path)), skipped_samples=skipped)
        file.write(dict(step=self.done, summary=summary), flush=True)
        if summary['steps']:
            print_log('\n' + health_table(summary), 'current')


class _AfterOtherHooks(Hook):
    """The part of `StepLogHook` that comes after all other hooks."""

    priority = 'LOWEST'

    def __init__(self, log: StepLogHook) -> None:
        self.log = log

    def before_train(self, runner: Runner) -> None:
        self.log.clock = time.perf_counter()

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        self.log.after_step(runner)

    def after_train_epoch(self, runner: Runner) -> None:
        self.log.clock = time.perf_counter()

    def after_val(self, runner: Runner) -> None:
        self.log.clock = time.perf_counter()

    def after_train(self, runner: Runner) -> None:
        self.log.end(runner, 'finished')


@contextmanager
def summarised(runner: Runner, interval: int) -> Iterator[None]:
    """Context of a training with a `StepLogHook`, which also ends with a summary if it fails or is told to end.

    Args:
        runner: The runner; it gets the hook unless its config has one.
        interval: See `StepLogHook`.
    """
    hook = next((hook for hook in runner.hooks if isinstance(hook, StepLogHook)), None)
    if hook is None:
        hook = StepLogHook(interval)
        runner.register_hook(hook)
    try:
        yield
    except BaseException as error:
        hook.end(runner, reason_of(error))
        raise


def reason_of(error: BaseException) -> str:
    """In a few words, what ended a run."""
    number = error.code - 128 if isinstance(error, SystemExit) and isinstance(error.code, int) else None
    if number in set(signal.Signals):
        return signal.Signals(number).name
    lines = str(error).strip().splitlines()
    return f'{type(error).__name__}: {lines[-1]}' if lines else type(error).__name__


class StepFile:
    """A file of lines of JSON, which go on after those of earlier starts of a run.

    Args:
        path: The file. What it says of steps after `start` is removed: they are about to be done again.
        start: Number of steps done.
        max_waiting: Number of lines that wait in memory at most.

    Attributes:
        failed: Whether the file could not be written; what comes after is dropped.
        flush_next: Whether the next line is to be written at once.
    """

    def __init__(self, path: Path, start: int, max_waiting: int) -> None:
        self.path, self.max_waiting = path, max_waiting
        self.waiting: list[str] = []
        self.flushed = time.monotonic()
        self.failed = self.flush_next = False
        if path.is_file():
            with self._going_on(), atomic_write(path) as kept:
                for line in read_lines(path):
                    if line['step'] <= start or 'start' in line or 'summary' in line:
                        kept.write(f'{json.dumps(line)}\n'.encode())

    def write(self, line: dict, flush: bool = False) -> None:
        """Write a line, now or later."""
        self.waiting.append(json.dumps(without_nan(line), allow_nan=False) + '\n')
        late = time.monotonic() - self.flushed > FLUSH_AFTER
        if flush or self.flush_next or late or len(self.waiting) >= self.max_waiting:
            self.flush()

    def flush(self) -> None:
        """Write the waiting lines, whole ones."""
        lines, self.waiting = ''.join(self.waiting), []
        self.flushed, self.flush_next = time.monotonic(), False
        if self.failed:
            return
        with self._going_on(), self.path.open('a', encoding='utf-8') as file:
            file.write(lines)

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Context in which the file may fail, as on a full disk: the training goes on."""
        try:
            yield
        except OSError as error:
            self.failed = True
            print_log(f'{self.path} cannot be written, and ends here: {error}', 'current', logging.WARNING)


class OwnTime:
    """How long each rank works in a step before it first waits for another rank.

    That is the time from the end of its last step to the first exchange of this one: waiting for data, copying it to
    the GPU, and the forward pass up to the first layer that exchanges something (synchronised batch norm, a unit of
    FSDP), or whole. The backward pass is not in it, as gradients are exchanged meanwhile. A rank that waits for
    others is not slow by this clock, and one that others wait for is.

    Args:
        model: The model with its wrapper, if any.
    """

    def __init__(self, model: nn.Module) -> None:
        self.seconds, self.steps = 0.0, 0
        self.on_gpu = torch.cuda.is_available()
        # Pairs of events, whose times are known when the GPU has come to them.
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.begin = self.reached = None
        module = unwrapped(model)
        for exchanging in (model if isinstance(model, nn.Module) else module).modules():
            if isinstance(exchanging, EXCHANGING):
                exchanging.register_forward_pre_hook(self._reach, prepend=True)
        module.register_forward_hook(self._reach)

    def start(self) -> None:
        """The batch is there."""
        self.begin, self.reached = self._moment(), None

    @torch.compiler.disable
    def _reach(self, *_: object) -> None:
        """The first exchange comes now, or the forward pass is over."""
        if self.begin is not None and self.reached is None:
            self.reached = self._moment()

    def stop(self, data_time: float) -> None:
        """The step is over; it had waited so many seconds for its data."""
        if self.reached is not None:
            self.seconds += data_time
            self.steps += 1
            if self.on_gpu:
                self.events.append((self.begin, self.reached))
            else:
                self.seconds += self.reached - self.begin
        self.begin = None

    def compare(self, memory: int) -> dict:
        """Compare the ranks' seconds a step since the last call, and the memory they took, in MiB.

        This is an exchange, for all ranks to call together. The result is part of the line of a step.
        """
        for begin, end in self.events:
            end.synchronize()
            self.seconds += begin.elapsed_time(end) / 1000
        mine = torch.tensor([self.seconds / max(self.steps, 1), memory])
        self.seconds, self.steps, self.events = 0.0, 0, []
        seconds, memory = torch.stack(all_gather(mine)).unbind(1)
        return dict(
            rank_skew=round(float(seconds.max() - seconds.min()), 6),
            slowest_rank=int(seconds.argmax()),
            max_memory=int(memory.max()),
        )

    def _moment(self) -> float | torch.cuda.Event:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class OptimizerSteps:
    """Whether a loss scaler left out the optimizer's step, as it does if gradients overflow.

    Args:
        optim_wrapper: A wrapper of an optimizer; without a `loss_scaler` nothing is left out.
    """

    def __init__(self, optim_wrapper: object) -> None:
        self.wrapper = optim_wrapper
        self.stepped: bool | Tensor = False
        self.watches = hasattr(optim_wrapper, 'loss_scaler')
        if self.watches:
            optim_wrapper.optimizer.register_step_post_hook(self._step)

    def _step(self, optimizer: Optimizer, *_: object) -> None:
        # A fused optimizer is called in any case, and is told by the scaler whether to change anything.
        found = getattr(optimizer, 'found_inf', None)
        self.stepped = True if found is None else found == 0

    def was_skipped(self) -> bool:
        """Whether the step that was just done should have changed the weights, and did not."""
        stepped, self.stepped = self.stepped, False
        return self.watches and self.wrapper.should_update() and not bool(stepped)


def num_images(batch: object) -> int | None:
    """The number of images of a batch, None if it is not of OpenMMLab's format."""
    inputs = batch.get('inputs') if isinstance(batch, dict) else None
    return len(inputs) if isinstance(inputs, (list, tuple, torch.Tensor)) else None


def peak_memory() -> int:
    """Peak memory of this process in bytes: on its GPU, if there is one, else in RAM."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == 'darwin' else 1024  # kibibytes on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def not_finite(values: dict) -> str:
    """The numbers that are NaN or infinite, as in 'loss is nan, loss_mask is inf'; an empty string without any."""
    return ', '.join(f'{name} is {value}' for name, value in numbers_of(values).items() if not math.isfinite(value))


def numbers_of(metrics: dict) -> dict[str, float]:
    """The metrics that are numbers; others are lists of classes or tables."""
    return {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float, np.number))}
