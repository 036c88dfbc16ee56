"""Checkpoints of a run: written atomically, and one more when the run is told to end."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from mmengine.dist import all_reduce, get_world_size, is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import print_log
from mmengine.runner import BaseLoop, Runner

from ..checkpoints.files import first_of, is_finite_or_mask
from ..checkpoints.loading import convert_first_conv, other_classes
from ..checkpoints.sharded import is_whole
from ..errors import InputError
from ..registry import HOOKS
from ..runtime.files import PARTIAL, atomic_write, remove
from .ema import local_part, unwrapped

# The signals of schedulers, of Ctrl+C, and of a terminal that closes, after which a run saves a checkpoint and ends.
# Windows has no SIGHUP.
SIGNALS = tuple(getattr(signal, name) for name in ('SIGTERM', 'SIGINT', 'SIGHUP') if hasattr(signal, name))
# Iterations between two exchanges of whether a process got one; each exchange makes the CPU wait for the GPU.
SIGNAL_INTERVAL = 10
ATOMIC_BACKEND = 'bioattn_mm.atomic'
# The file in a work dir that names the last checkpoint.
LAST = 'last_checkpoint'
# mmengine's message hub has the iteration of a checkpoint that a signal has brought about under this name, so that
# the training that goes on from it can remove it.
INTERRUPTED = 'interrupted_ckpt_id'


@register_backend(ATOMIC_BACKEND)
class AtomicFileBackend(LocalBackend):
    """What mmengine's `save_checkpoint` writes a training's checkpoints by: the hook below names it."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write a file in a folder that may be missing; if that fails, an older one stays as it was."""
        path = Path(filepath)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(obj)


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """mmengine's hook, with its arguments, for runs that may be killed at any moment: checkpoints are whole.

    Local files are written under a temporary name and then renamed; `FSDP2Strategy` does so while training goes on.
    Only when a checkpoint is whole, the file `last_checkpoint`, which mmengine's runners resume from, names it, and
    those that `max_keep_ckpts` or a better metric supersedes are removed, if they are `is_own`. On SIGTERM, SIGINT
    and SIGHUP a checkpoint is saved after the current optimizer step and the process exits with 128 + the number of
    the signal; a second Ctrl+C ends a single process at once. Weights that are not finite are not saved: the run
    ends.
    """

    def before_run(self, runner: Runner) -> None:
        super().before_run(runner)
        self.got_signal = self.any_got_signal = 0
        loop = runner._train_loop
        if isinstance(loop, BaseLoop):  # else it only tests
            loop.run = self._handling_signals()(loop.run)  # mmengine calls no hook if training fails

    @contextmanager
    def _handling_signals(self) -> Iterator[None]:
        """Context in which this hook handles the signals, except for those that nohup has ignored."""
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        handlers = {number: handler for number, handler in handlers.items() if handler != signal.SIG_IGN}
        for number in handlers:
            signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def before_train(self, runner: Runner) -> None:
        known = runner.message_hub.runtime_info.get('keep_ckpt_ids')
        if known is not None:  # mmengine removes the first of them by their names
            numbers = [number for number in known if isinstance(number, int)] if isinstance(known, list) else []
            runner.message_hub.update_info('keep_ckpt_ids', numbers)
        super().before_train(runner)
        if isinstance(self.file_backend, LocalBackend):
            self.backend_args = dict(backend=ATOMIC_BACKEND)
        self.file_backend = LateRemoval(self.file_backend, self.is_own)
        if is_main_process():
            for partial in Path(self.out_dir).glob(f'.*{PARTIAL}'):
                if self.is_own(partial):
                    remove(partial)
        self._progress = {}

    def is_own(self, path: str | Path) -> bool:
        """Whether a path, which may be remote, is a checkpoint, or part of one, that this hook has written."""
        folder, _, name = str(path).rpartition('/')
        is_complete = not (name.startswith('.') and name.endswith(PARTIAL))  # see `files.atomic_path`
        if not is_complete:
            name = name[1 : -len(PARTIAL)].removeprefix('older_')
        numbered = r'\d+'.join(map(re.escape, re.split(r'\{[^}]*\}', self.filename_tmpl)))
        if not re.fullmatch(rf'(best_.+_)?{numbered}|iter_\d+\.pth|{LAST}', name) or name == LAST and is_complete:
            return False
        if not isinstance(self.file_backend, (LocalBackend, LateRemoval)) or '://' in str(path):
            return folder == str(self.out_dir).rstrip('/')
        path = Path(path)
        if path.is_symlink() or path.parent.resolve() != Path(self.out_dir).resolve():
            return False
        return not is_complete or is_whole(path)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        super().after_train_iter(runner, batch_idx, data_batch, outputs)
        finish_saving(runner, wait=False)
        if runner.iter % (SIGNAL_INTERVAL if get_world_size() > 1 else 1) == 0:
            got_signal = torch.tensor(self.got_signal, dtype=torch.int32)
            all_reduce(got_signal, 'max')
            self.any_got_signal = int(got_signal)
        # Not before the optimizer's step: checkpoints do not hold accumulated gradients.
        if self.any_got_signal and runner.optim_wrapper.should_update():
            self._save_now(runner)
            raise SystemExit(128 + self.any_got_signal)

    def _on_signal(self, number: int, _: object) -> None:
        # torchrun hands a Ctrl+C on to processes that the terminal has sent it to already.
        may_hurry = number == signal.SIGINT and get_world_size() == 1
        if may_hurry and self.got_signal == number:
            raise KeyboardInterrupt
        self.got_signal = number
        if is_main_process():
            again = '; Ctrl+C again ends it at once' * may_hurry
            os.write(2, f'got {signal.Signals(number).name}: ending after the next step{again}\n'.encode())

    def _save_now(self, runner: Runner) -> None:
        filename = f'iter_{runner.iter + 1}.pth'
        name = signal.Signals(self.any_got_signal).name
        runner.logger.info(f'Got {name}: saving {filename}; continue from it with --resume')
        self._mark_interrupted(runner)
        if str(self.last_ckpt).rpartition('/')[2] != filename:  # else the interval has just saved it
            runner.message_hub.update_info(INTERRUPTED, runner.iter + 1)
        self._save(runner, filename, dict(epoch=runner.epoch, iter=runner.iter + 1), by_epoch=False)
        self._remove_superfluous(runner)
        finish_saving(runner)

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        """Save a checkpoint in place of mmengine's method, which names it in `last_checkpoint` before it is whole."""
        finish_saving(runner)
        if self.max_keep_ckpts > 0 and [*self.keep_ckpt_ids][-1:] != [step]:
            if len(self.keep_ckpt_ids) == self.max_keep_ckpts and is_main_process():
                self._mark(self.filename_tmpl.format(self.keep_ckpt_ids[0]))
            self.keep_ckpt_ids.append(step)  # a deque of that length
            runner.message_hub.update_info('keep_ckpt_ids', list(self.keep_ckpt_ids))
        self._mark_interrupted(runner)
        filename = self.filename_tmpl.format(step)
        self.last_ckpt = self.file_backend.join_path(self.out_dir, filename)
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        # mmengine saves the last checkpoint again after the best validation so far. By then the loop has counted on,
        # and FlexibleRunner writes that number into the file: a resumed run would skip an iteration.
        self._progress = dict(epoch=step, iter=runner.iter) if self.by_epoch else dict(epoch=runner.epoch, iter=step)
        self._save(runner, filename, meta, self.by_epoch, **self.args)
        self._progress = {}
        self._remove_superfluous(runner)

    def _save(self, runner: Runner, filename: str, meta: dict, by_epoch: bool, **options: object) -> None:
        runner.save_checkpoint(
            self.out_dir,
            filename,
            self.file_client_args,
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
            meta=meta,
            by_epoch=by_epoch,
            backend_args=self.backend_args,
            **options,
        )
        path = self.file_backend.join_path(self.out_dir, filename)
        if is_main_process():

            def name_last() -> None:
                with atomic_write(Path(runner.work_dir) / LAST) as file:
                    file.write(path.encode())

            when_saved(runner, name_last)

    def _mark_interrupted(self, runner: Runner) -> None:
        """Mark what was saved when a signal ended this training before, as a newer checkpoint is to be written."""
        number = runner.message_hub.runtime_info.pop(INTERRUPTED, None)
        if self.max_keep_ckpts > 0 and isinstance(number, int) and is_main_process():
            self._mark(f'iter_{number}.pth')

    def _mark(self, filename: str) -> None:
        self.file_backend.remove(self.file_backend.join_path(self.out_dir, filename))

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Raise an `InputError` if the weights are not finite: nothing could go on from them."""
        checkpoint['meta'].update(self._progress)
        bad = [name for name, value in checkpoint['state_dict'].items() if not is_finite_or_mask(local_part(value))]
        found = torch.tensor(bool(bad), dtype=torch.int32)
        if hasattr(runner, 'strategy'):  # else rank 0 is here alone
            all_reduce(found, 'max')
        if found:
            raise InputError(
                f'after step {runner.iter + 1} weights are NaN or infinite ({first_of(bad) or "of another rank"}), '
                'and the training ends; the checkpoints before are as they were: go on from one with --resume and a '
                'lower optim_wrapper.optimizer.lr or optim_wrapper.clip_grad, or look into the data'
            )

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        # mmengine runs this text when it resumes.
        if isinstance(checkpoint.get('meta'), dict):
            checkpoint['meta'].pop('config', None)

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        super()._save_best_checkpoint(runner, metrics)
        self._remove_superfluous(runner)

    def _remove_superfluous(self, runner: Runner) -> None:
        best = getattr(self, 'best_ckpt_path_dict', None) or {'': getattr(self, 'best_ckpt_path', None)}
        # A strategy may still be writing what supersedes them.
        when_saved(runner, self.file_backend.take_marked(keep={self.last_ckpt, *best.values()}))

    def after_train(self, runner: Runner) -> None:
        finish_saving(runner)
        super().after_train(runner)


@HOOKS.register_module()
class LeaveOutOtherClassesHook(Hook):
    """Start from a checkpoint of other classes or channels.

    What goes by the number of classes keeps its initial values; weights of RGB images are converted to the channels.
    """

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        # A bare state dict, or one as mmengine saves it.
        weights, model = checkpoint.get('state_dict', checkpoint), unwrapped(runner.model)
        converted = convert_first_conv(model, runner.cfg.get('load_from'), weights)
        if converted:
            print_log(f'channels converted: {converted}', 'current')
        names = other_classes(weights, model.state_dict())
        for name in names:
            del weights[name]
        if names:
            print_log(f'left out, as of another number of classes: {", ".join(names)}', 'current')


class LateRemoval:
    """A file backend that only marks what it is told to remove, if it `is_own`; `take_marked` has what removes it."""

    def __init__(self, backend: LocalBackend, is_own: Callable[[str], bool]) -> None:
        self._backend, self._is_own = backend, is_own
        self._marked: list[str] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._backend, name)

    def remove(self, path: str) -> None:
        if self._is_own(path):
            self._marked.append(path)

    rmtree = remove

    def take_marked(self, keep: set[str | None]) -> Callable[[], None]:
        """A function that removes what is marked, except for the paths in `keep`, which are written again."""
        marked, self._marked = [path for path in self._marked if path not in keep], []

        def remove_marked() -> None:
            for path in marked:
                if self._backend.isdir(path):
                    self._backend.rmtree(path)
                elif self._backend.isfile(path):
                    self._backend.remove(path)

        return remove_marked


def finish_saving(runner: Runner, wait: bool = True) -> None:
    """Wait for what a strategy is writing (see `FSDP2Strategy.finish_saving`); others are done already."""
    finish = getattr(getattr(runner, 'strategy', None), 'finish_saving', None)
    if finish is not None:
        finish(wait)


def when_saved(runner: Runner, function: Callable[[], None]) -> None:
    """Call a function when what a strategy is writing is whole (see `FSDP2Strategy.when_saved`), of others now."""
    getattr(getattr(runner, 'strategy', None), 'when_saved', lambda function: function())(function)


def latest_checkpoint(work_dir: str | Path) -> str | None:
    """The checkpoint to resume a run of this folder from, None if there is none.

    It is the one that the file `last_checkpoint` names, in this folder if it was moved or copied, else the newest
    whole checkpoint of the folder.
    """
    work_dir = Path(work_dir)
    pointer = work_dir / LAST
    named = pointer.read_text(errors='replace').strip() if pointer.is_file() else ''
    own = work_dir / Path(named).name
    if named and is_whole(own):
        return str(own)
    if named and ('://' in named or is_whole(named)):
        return named
    found = [
        path for path in work_dir.glob('*.pth') if re.fullmatch(r'(iter|epoch)_\d+', path.stem) and is_whole(path)
    ]
    return str(max(found, key=lambda path: path.stat().st_mtime)) if found else None
