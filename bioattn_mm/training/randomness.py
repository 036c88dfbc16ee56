"""Randomness that a resumed run repeats: draws depend on the seed, the rank, the iteration and the sample alone."""

import logging
import os
import signal
import threading

from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch.utils.data import get_worker_info

from ..data.samplers import seed_everything, seed_samples, skip_batches
from ..registry import HOOKS, LOOPS


@HOOKS.register_module()
class SeedingHook(Hook):
    """Seed everything that training draws, so that a resumed run draws what an uninterrupted one does.

    What the model draws is seeded in each iteration, what augmentation draws for each sample (see
    `bioattn_mm.data.samplers`). The log names what cannot be seeded.
    """

    priority = 'VERY_HIGH'

    def before_train(self, runner: Runner) -> None:
        # mmengine starts the workers at the first iteration, and of a validation at its first.
        for loop in filter(None, (runner.train_loop, runner.val_loop)):
            loop.dataloader.worker_init_fn = start_worker
        unseeded = seed_samples(runner.train_dataloader)
        if type(runner.train_loop) is EpochBasedTrainLoop:
            unseeded.append(
                'the rest of an epoch after --resume (set train_cfg.type to bioattn_mm.ResumableEpochBasedTrainLoop)'
            )
        if unseeded:
            print_log(f'a resumed run will not repeat: {"; ".join(unseeded)}', 'current', logging.WARNING)

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch=None) -> None:
        seed_everything(runner.seed, get_rank(), runner.iter)


def warn_if_unseeded(runner: Runner) -> None:
    """Log a warning if a run has no `SeedingHook`, as with a config whose `custom_hooks` replaced it."""
    if not any(isinstance(hook, SeedingHook) for hook in runner.hooks):
        runner.logger.warning(
            'random draws are not seeded, so a resumed run will not repeat them: inherit '
            "configs/_base_/runtimes/seeded.py, or add dict(type='bioattn_mm.SeedingHook') to custom_hooks"
        )


def start_worker(worker: int) -> None:
    """Seed a worker process of a data loader by loader and rank, and let its parent alone end it.

    Schedulers and terminals send signals to all processes; the run saves its checkpoint while the workers live.
    """
    seed_everything(get_worker_info().seed, get_rank())
    if not hasattr(signal, 'sigwaitinfo'):  # macOS and Windows: there such a signal ends the workers, too
        return
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    """End the process at a SIGTERM that its parent sent."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


@LOOPS.register_module()
class ResumableEpochBasedTrainLoop(EpochBasedTrainLoop):
    """mmengine's `EpochBasedTrainLoop`, which can be resumed within an epoch, without reading its images again.

    With another number of batches in an epoch, as of another number of processes, the epoch begins anew.
    """

    def run_epoch(self) -> None:
        trained = self._trained_before()
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        if trained:
            skip_batches(self.dataloader.batch_sampler, trained)
        for index, batch in enumerate(self.dataloader, start=trained):
            self.run_iter(index, batch)
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1

    def _trained_before(self) -> int:
        """How many batches of this epoch a resumed run was trained on; checkpoints hold where the epoch began."""
        number, hub = len(self.dataloader), self.runner.message_hub
        # A checkpoint of mmengine's own loop does not say it.
        began = hub.get_info('epoch_began') or dict(epoch=self._epoch, at=self._epoch * number, batches=number)
        trained = self._iter - began['at']
        if (began['epoch'], began['batches']) != (self._epoch, number) or not 0 <= trained <= number:
            trained = 0
        hub.update_info('epoch_began', dict(epoch=self._epoch, at=self._iter - trained, batches=number))
        return trained
