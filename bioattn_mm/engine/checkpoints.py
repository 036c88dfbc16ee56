"""Checkpoints of a run: written atomically, and one more when the run is told to end."""

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
from ..files import PARTIAL, atomic_write, remove
from ..registry import HOOKS

# Iterations between two exchanges of whether a process got a SIGTERM; each exchange makes the CPU wait for the GPU.
SIGTERM_INTERVAL = 10
ATOMIC_BACKEND = 'bioattn_mm.atomic'
# The file in a work dir that names the last checkpoint.
LAST = 'last_checkpoint'


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
    Slurm, Kubernetes and torchrun send before they kill a job, a checkpoint is saved after the current optimizer
    step and the process exits with code 143.

    The arguments are those of mmengine's hook.
    """

    def before_run(self, runner: Runner) -> None:
        super().before_run(runner)
        self.got_sigterm = self.any_got_sigterm = False
        train_within(self._handler, runner)

    @contextmanager
    def _handler(self) -> Iterator[None]:
        """Context in which this hook handles SIGTERM."""
        handler = signal.signal(signal.SIGTERM, self._on_sigterm)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, handler)

    def before_train(self, runner: Runner) -> None:
        super().before_train(runner)
        if isinstance(self.file_backend, LocalBackend):
            self.backend_args = dict(backend=ATOMIC_BACKEND)
        self.file_backend = LateRemoval(self.file_backend)
        if is_main_process():
            for partial in Path(self.out_dir).glob(f'.*{PARTIAL}'):
                remove(partial)
        self._progress = {}

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        super().after_train_iter(runner, batch_idx, data_batch, outputs)
        finish_saving(runner, wait=False)
        if runner.iter % (SIGTERM_INTERVAL if get_world_size() > 1 else 1) == 0:
            got_sigterm = torch.tensor(self.got_sigterm, dtype=torch.int32)
            all_reduce(got_sigterm, 'max')
            self.any_got_sigterm = bool(got_sigterm)
        # Not before the optimizer's step: checkpoints do not hold accumulated gradients. DeepSpeed's wrapper has no
        # `should_update`, DeepSpeed itself counts.
        should_update = getattr(runner.optim_wrapper, 'should_update', lambda: True)
        if self.any_got_sigterm and should_update():
            self._save_now(runner)
            raise SystemExit(128 + signal.SIGTERM)

    def _on_sigterm(self, *_: object) -> None:
        self.got_sigterm = True

    def _save_now(self, runner: Runner) -> None:
        """Save a checkpoint after this iteration, also in the middle of an epoch."""
        filename = f'iter_{runner.iter + 1}.pth'
        runner.logger.info(f'Got SIGTERM: saving {filename}; continue from it with --resume')
        self._save(runner, filename, dict(epoch=runner.epoch, iter=runner.iter + 1), by_epoch=False)
        finish_saving(runner)

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        """Save a checkpoint in place of mmengine's method, which names it in `last_checkpoint` before it is whole."""
        finish_saving(runner)
        if self.max_keep_ckpts > 0 and [*self.keep_ckpt_ids][-1:] != [step]:
            if len(self.keep_ckpt_ids) == self.max_keep_ckpts and is_main_process():
                self._mark_superfluous(self.filename_tmpl.format(self.keep_ckpt_ids[0]))
            self.keep_ckpt_ids.append(step)  # a deque of that length
            runner.message_hub.update_info('keep_ckpt_ids', list(self.keep_ckpt_ids))
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

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        checkpoint['meta'].update(self._progress)

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
    """

    def __init__(self, backend: LocalBackend) -> None:
        self._backend = backend
        self._marked = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._backend, name)

    def remove(self, path: str) -> None:
        """Mark a file."""
        self._marked.append((self._backend.remove, path))

    def rmtree(self, path: str) -> None:
        """Mark a folder."""
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

    It is the one that the file `last_checkpoint` names. If the run was killed before it wrote that file, or if the
    checkpoint is no longer there, it is the newest whole checkpoint of the folder.
    """
    work_dir = Path(work_dir)
    pointer = work_dir / LAST
    named = pointer.read_text().strip() if pointer.is_file() else ''
    if named and ('://' in named or is_whole(named)):
        return named
    found = [
        path for path in work_dir.glob('*.pth') if re.fullmatch(r'(iter|epoch)_\d+', path.stem) and is_whole(path)
    ]
    return str(max(found, key=lambda path: path.stat().st_mtime)) if found else None
