"""Checkpoints of a run: written atomically, and one more when the run is told to end."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch
from mmengine.dist import all_reduce, get_world_size, is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.runner import BaseLoop, Runner

from ..checkpoints import is_whole
from ..checkpoints.files import first_of, is_finite_or_mask
from ..errors import InputError
from ..files import PARTIAL, atomic_write, remove
from ..registry import HOOKS
from .ema import local_part

# The signals after which a run saves a checkpoint and ends: of schedulers, of Ctrl+C, and of a terminal that closes.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Iterations between two exchanges of whether a process got one; each exchange makes the CPU wait for the GPU.
SIGNAL_INTERVAL = 10
ATOMIC_BACKEND = 'bioattn_mm.atomic'
# The file in a work dir that names the last checkpoint.
LAST = 'last_checkpoint'
# A checkpoint that a signal has brought about has its iteration under this name in mmengine's message hub, so that
# the training that goes on from it can remove it.
INTERRUPTED = 'interrupted_ckpt_id'


@register_backend(ATOMIC_BACKEND)
class AtomicFileBackend(LocalBackend):
    """mmengine's local file backend with atomic writing."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write a file; if that fails, an older one stays as it was.

        Args:
            obj: The content.
            filepath: The file; missing folders are created.

        Raises:
            OSError: The file cannot be written.
        """
        path = Path(filepath)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(obj)


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """mmengine's hook for runs that may be killed at any moment: they always leave a complete checkpoint.

    Local files are written under a temporary name and then renamed. A FlexibleRunner leaves the writing to its
    strategy: those of this package do the same, and `FSDP2Strategy` writes while training goes on, until the next
    checkpoint or the end at the latest. Only then does the file `last_checkpoint`, which mmengine's runners resume
    from, name it, and are checkpoints removed that `max_keep_ckpts` or a better metric supersedes. On SIGTERM, which
    Slurm, Kubernetes and torchrun send before they kill a job, on Ctrl+C (SIGINT) and when the terminal closes
    (SIGHUP), a checkpoint is saved after the current optimizer step and the process exits with 128 + the number of
    the signal. A second Ctrl+C ends a single process at once.

    What is removed is `is_own`: paths that a checkpoint brings along, such as that of the best one so far, count by
    their name in the folder of this run. Weights that are not finite are not saved: the run ends, and the checkpoints
    before stay.

    The arguments are those of mmengine's hook.
    """

    def before_run(self, runner: Runner) -> None:
        super().before_run(runner)
        self.got_signal = self.any_got_signal = 0
        train_within(self._handler, runner)

    @contextmanager
    def _handler(self) -> Iterator[None]:
        """Context in which this hook handles the signals, except for those that are ignored, as nohup does it."""
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
        self._take_own_best(runner)

    def is_own(self, path: str | Path) -> bool:
        """Whether a path is a checkpoint of this run, which the run may remove: its folder and its name decide.

        The name is one that this hook writes, and what is there is a checkpoint, or one that was not written to its
        end. Everything else was written by somebody else.

        Args:
            path: A file or folder; may be remote.
        """
        folder, _, name = str(path).rpartition('/')
        if name.startswith('.') and name.endswith(PARTIAL):  # see `files.atomic_path`
            name = name[1 : -len(PARTIAL)].removeprefix('older_')
            is_complete = False
        else:
            is_complete = True
        numbered = r'\d+'.join(map(re.escape, re.split(r'\{[^}]*\}', self.filename_tmpl)))
        if not re.fullmatch(rf'(best_.+_)?{numbered}|iter_\d+\.pth|{LAST}', name) or name == LAST and is_complete:
            return False
        if not isinstance(self.file_backend, (LocalBackend, LateRemoval)) or '://' in str(path):
            return folder == str(self.out_dir).rstrip('/')
        path = Path(path)
        if path.is_symlink() or path.parent.resolve() != Path(self.out_dir).resolve():
            return False
        return not is_complete or is_whole(path)

    def _take_own_best(self, runner: Runner) -> None:
        """Take of the best checkpoints that the checkpoint resumed from names those that are in this run's folder.

        It names them by their paths, which are of another folder if the run was moved, or goes on in a new one.
        """
        if not self.save_best:
            return
        several = getattr(self, 'best_ckpt_path_dict', None)
        for key, path in (several if several is not None else {None: self.best_ckpt_path}).items():
            if not path:
                continue
            name = str(path).rpartition('/')[2]
            own = self.file_backend.join_path(self.out_dir, name)
            if not (name.startswith('best_') and self.is_own(own)):
                own = None
                runner.logger.info(f'the best checkpoint so far, {path}, is not in {self.out_dir}, and stays there')
            if several is None:
                self.best_ckpt_path = own
            else:
                several[key] = own
            runner.message_hub.update_info('best_ckpt' if key is None else f'best_ckpt_{key}', own)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        super().after_train_iter(runner, batch_idx, data_batch, outputs)
        finish_saving(runner, wait=False)
        if runner.iter % (SIGNAL_INTERVAL if get_world_size() > 1 else 1) == 0:
            got_signal = torch.tensor(self.got_signal, dtype=torch.int32)
            all_reduce(got_signal, 'max')
            self.any_got_signal = int(got_signal)
        # Not before the optimizer's step: checkpoints do not hold accumulated gradients. DeepSpeed's wrapper has no
        # `should_update`, DeepSpeed itself counts.
        should_update = getattr(runner.optim_wrapper, 'should_update', lambda: True)
        if self.any_got_signal and should_update():
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
        """Save a checkpoint after this iteration, also in the middle of an epoch."""
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
                self._mark_superfluous(self.filename_tmpl.format(self.keep_ckpt_ids[0]))
            self.keep_ckpt_ids.append(step)  # a deque of that length
            runner.message_hub.update_info('keep_ckpt_ids', list(self.keep_ckpt_ids))
        self._mark_interrupted(runner)
        filename = self.filename_tmpl.format(step)
        self.last_ckpt = self.file_backend.join_path(self.out_dir, filename)
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        # mmengine saves the last checkpoint again after the best validation so far. By then the loop has counted one
        # iteration or epoch further, and FlexibleRunner writes that number into the file instead of those in `meta`:
        # a resumed run would skip an iteration.
        self._progress = dict(epoch=step, iter=runner.iter) if self.by_epoch else dict(epoch=runner.epoch, iter=step)
        self._save(runner, filename, meta, self.by_epoch, **self.args)
        self._progress = {}
        self._remove_superfluous(runner)

    def _save(self, runner: Runner, filename: str, meta: dict, by_epoch: bool, **options: object) -> None:
        """Save a checkpoint, and name it in `last_checkpoint` when it is whole."""
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
            when_saved(runner, lambda: name_last(runner.work_dir, path))

    def _mark_superfluous(self, filename: str) -> None:
        """Mark a checkpoint that is to be removed when the next one is whole."""
        path = self.file_backend.join_path(self.out_dir, filename)
        if self.file_backend.isfile(path):
            self.file_backend.remove(path)
        elif self.file_backend.isdir(path):  # of a strategy
            self.file_backend.rmtree(path)

    def _mark_interrupted(self, runner: Runner) -> None:
        """Mark what was saved when a signal ended this training before, as a newer checkpoint is to be written."""
        number = runner.message_hub.runtime_info.pop(INTERRUPTED, None)
        if self.max_keep_ckpts > 0 and isinstance(number, int) and is_main_process():
            self._mark_superfluous(f'iter_{number}.pth')

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


class LateRemoval:
    """A file backend that only marks what it is told to remove; what `take_marked` returns removes it.

    Args:
        backend: The file backend that does everything else.
        is_own: Decides whether a path may be removed; others are left alone.
    """

    def __init__(self, backend: LocalBackend, is_own: Callable[[str], bool]) -> None:
        self._backend, self._is_own = backend, is_own
        self._marked = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._backend, name)

    def remove(self, path: str) -> None:
        """Mark a file."""
        if self._is_own(path):
            self._marked.append((self._backend.remove, path))

    def rmtree(self, path: str) -> None:
        """Mark a folder."""
        if self._is_own(path):
            self._marked.append((self._backend.rmtree, path))

    def take_marked(self, keep: set[str | None]) -> Callable[[], None]:
        """A function that removes what is marked, except for the paths in `keep`, which are written again."""
        marked = [(remove_now, path) for remove_now, path in self._marked if path not in keep]
        self._marked.clear()

        def remove_marked() -> None:
            for remove_now, path in marked:
                remove_now(path)

        return remove_marked


def train_within(context: Callable[[], AbstractContextManager], runner: Runner) -> None:
    """Let a runner train within a context; to be called in `before_run`. mmengine calls no hook if training fails."""
    loop = runner._train_loop
    if not isinstance(loop, BaseLoop):  # it only tests
        return
    run = loop.run

    def run_within() -> object:
        with context():
            return run()

    loop.run = run_within


def finish_saving(runner: Runner, wait: bool = True) -> None:
    """Wait for what a strategy is writing (see `FSDP2Strategy.finish_saving`); others are done already."""
    finish = getattr(getattr(runner, 'strategy', None), 'finish_saving', None)
    if finish is not None:
        finish(wait)


def when_saved(runner: Runner, function: Callable[[], None]) -> None:
    """Call a function when what a strategy is writing is whole (see `FSDP2Strategy.when_saved`); else at once."""
    call_later = getattr(getattr(runner, 'strategy', None), 'when_saved', None)
    if call_later is None:
        function()
    else:
        call_later(function)


def name_last(work_dir: str | Path, path: str) -> None:
    """Write the path of the last whole checkpoint where mmengine's runners and `latest_checkpoint` read it."""
    with atomic_write(Path(work_dir) / LAST) as file:
        file.write(path.encode())


def latest_checkpoint(work_dir: str | Path) -> str | None:
    """The checkpoint to resume a run of this folder from, None if there is none.

    It is the one that the file `last_checkpoint` names, in this folder if it was moved or copied. If the run was
    killed before it wrote that file, or if the checkpoint is no longer there, it is the newest whole checkpoint of
    the folder.
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
