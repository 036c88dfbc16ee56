"""Checkpoints of a run: there whole or not at all, and one of the moment when the run is told to end."""

import re
import shutil
import signal
from pathlib import Path

import torch
from mmengine.dist import all_reduce, get_world_size, is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from ..files import PARTIAL, atomic_write
from ..registry import HOOKS

# Iterations after which several processes tell each other of a SIGTERM; it makes the CPU wait for the GPU.
AGREE_INTERVAL = 10


class AtomicFileBackend(LocalBackend):
    """mmengine's access to local files, except that a file gets its name once all of it is on the disk."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write a file, or raise `OSError` and leave what was there as it was.

        Args:
            obj: What to write.
            filepath: Where; folders are made.
        """
        path = Path(filepath)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(obj)


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """mmengine's, except that a run that ends at any moment leaves a whole checkpoint to go on from.

    Files are written under another name first; what `max_keep_ckpts` or a better metric makes superfluous is removed
    when its successor is there. On SIGTERM, by which Slurm, Kubernetes and torchrun announce that they end a job, a
    checkpoint is saved after the current step of the optimizer, and the process ends with exit code 143.

    The arguments are those of mmengine's hook.
    """

    def before_train(self, runner: Runner) -> None:
        # For whatever writes: this hook, and the strategies, which choose the backend themselves.
        register_backend('local', AtomicFileBackend, force=True, prefixes='')
        super().before_train(runner)
        self.file_backend = LateRemoval(self.file_backend)
        if is_main_process() and Path(self.out_dir).is_dir():
            for partial in Path(self.out_dir).glob(f'.*{PARTIAL}'):
                shutil.rmtree(partial) if partial.is_dir() else partial.unlink()
        self.told_to_end = self.all_told_to_end = False
        self._progress = {}
        self._old_handler = signal.signal(signal.SIGTERM, self._on_sigterm)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        super().after_train_iter(runner, batch_idx, data_batch, outputs)
        if runner.iter % (AGREE_INTERVAL if get_world_size() > 1 else 1) == 0:
            told = torch.tensor(self.told_to_end, dtype=torch.int32)
            all_reduce(told, 'max')
            self.all_told_to_end = bool(told)
        # Gradients that are being accumulated are in no checkpoint. DeepSpeed keeps its own count of them.
        should_update = getattr(runner.optim_wrapper, 'should_update', lambda: True)
        if self.all_told_to_end and should_update():
            self._save_now(runner)
            raise SystemExit(128 + signal.SIGTERM)

    def after_train(self, runner: Runner) -> None:
        super().after_train(runner)
        signal.signal(signal.SIGTERM, self._old_handler)

    def _on_sigterm(self, *_: object) -> None:
        self.told_to_end = True

    def _save_now(self, runner: Runner) -> None:
        """Save after this iteration, in the middle of an epoch as well."""
        filename = f'iter_{runner.iter + 1}.pth'
        runner.logger.info(f'Told to end by SIGTERM: saving {filename}; go on from it with --resume')
        runner.save_checkpoint(
            self.out_dir,
            filename,
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
            meta=dict(epoch=runner.epoch, iter=runner.iter + 1),
            by_epoch=False,
            backend_args=self.backend_args,
        )
        if is_main_process():
            path = self.file_backend.join_path(self.out_dir, filename)
            (Path(runner.work_dir) / 'last_checkpoint').write_text(path)

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        # After a validation that is the best so far, mmengine saves the last checkpoint again. The loop counts one
        # iteration or epoch further by then, and FlexibleRunner writes that into the file, whatever `meta` says: a
        # resumed run would leave an iteration out.
        self._progress = dict(epoch=step, iter=runner.iter) if self.by_epoch else dict(epoch=runner.epoch, iter=step)
        super()._save_checkpoint_with_step(runner, step, meta)
        self._progress = {}
        self._remove_superfluous()

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        checkpoint['meta'].update(self._progress)

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        super()._save_best_checkpoint(runner, metrics)
        self._remove_superfluous()

    def _remove_superfluous(self) -> None:
        best = getattr(self, 'best_ckpt_path_dict', None) or {'': getattr(self, 'best_ckpt_path', None)}
        self.file_backend.remove_marked(keep={self.last_ckpt, *best.values()})


class LateRemoval:
    """A file backend that removes files when told a second time.

    Args:
        backend: The backend that it stands for.
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

    def remove_marked(self, keep: set[str | None]) -> None:
        """Remove what is marked, except for what has been written again since."""
        for remove, path in self._marked:
            if path not in keep:
                remove(path)
        self._marked.clear()


def latest_checkpoint(work_dir: str | Path) -> str | None:
    """The checkpoint that a run in this folder goes on from, None if there is none.

    It is what the file `last_checkpoint` names; where a run was killed before it could write that, the newest.
    """
    work_dir = Path(work_dir)
    pointer = work_dir / 'last_checkpoint'
    named = pointer.read_text().strip() if pointer.is_file() else ''
    if named and ('://' in named or Path(named).exists()):
        return named
    found = [path for path in work_dir.glob('*.pth') if re.fullmatch(r'(iter|epoch)_\d+', path.stem)]
    return str(max(found, key=lambda path: path.stat().st_mtime)) if found else None
