"""A hook for a config: one process hangs once."""

import time
from pathlib import Path

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner


@HOOKS.register_module()
class HangOnceHook(Hook):
    """Hangs in rank 1 after an iteration, unless it has done so in an earlier start of the run."""

    def __init__(self, after: int) -> None:
        self.after = after

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        mark = Path(runner.work_dir, 'has_hung')
        if runner.iter + 1 == self.after and runner.rank == 1 and not mark.exists():
            mark.touch()
            time.sleep(600)
