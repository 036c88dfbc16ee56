"""Randomness that a resumed run repeats: what is drawn depends on the seed, the rank and the step alone."""

import os
import signal
import threading

from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch.utils.data import get_worker_info

from ..datasets.samplers import seed_everything
from ..registry import FUNCTIONS, HOOKS, LOOPS


@HOOKS.register_module()
class RandomnessHook(Hook):
    """Seed every iteration by the run's seed, the rank and the number of the iteration.

    Stochastic depth, samplers of regions and noise on boxes are then the same in a run that was resumed and in one
    that was not. The samplers of `bioattn_mm.datasets.samplers` do the same for the data.
    """

    priority = 'VERY_HIGH'

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch=None) -> None:
        seed_everything(runner.seed, get_rank(), runner.iter)


@FUNCTIONS.register_module()
def seed_worker(worker: int) -> None:
    """Start a worker process of a data loader: seeded by the loader and the rank, ended by its parent alone.

    A SIGTERM to all processes of a job must not end the workers before the run has saved its checkpoint.
    """
    seed_everything(get_worker_info().seed, get_rank())
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    """End the process when its parent tells it to, with a SIGTERM."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


@LOOPS.register_module()
class ResumableEpochBasedTrainLoop(EpochBasedTrainLoop):
    """mmengine's, except that it goes on in the middle of an epoch: batches that were trained on are passed over."""

    def run_epoch(self) -> None:
        """Train on what is left of this epoch."""
        trained = self._iter - self._epoch * len(self.dataloader)
        if not 0 <= trained < len(self.dataloader):  # another number of processes has made epochs shorter or longer
            trained = 0
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        for index, batch in enumerate(self.dataloader):
            if index >= trained:
                self.run_iter(index, batch)
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1
