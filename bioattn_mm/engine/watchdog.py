"""What a run of several processes says and does when one of them hangs."""

import faulthandler
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mmengine.dist import get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.distributed import HashStore, Store
from torch.distributed.distributed_c10d import _get_default_group, _get_default_store

from ..errors import InputError
from ..registry import HOOKS
from .checkpoints import train_within

# Exit code of a process that hangs or waits for one: that of the command `timeout`.
EXIT_CODE = 124
# Key of the store under which the rank that notices a hang says so.
HANG = 'bioattn_mm/hang'


@HOOKS.register_module()
class WatchdogHook(Hook):
    """Ends a run in which nothing happens any more, and says which rank it is because of.

    A rank that hangs lets all others wait in their next collective operation. After `timeout` seconds without an
    iteration of training, validation or test, every rank prints its host, its iteration and the stacks of its threads
    to stderr. One prints which ranks are behind, that is, have begun the fewest iterations, or in the same iteration
    the fewest collective operations. Then all exit with code 124, and tools/dist_train.sh starts them again.

    Args:
        timeout: Seconds. Less than those after which collective operations fail (`env_cfg.dist_cfg.timeout`), and
            more than all that happens between two iterations takes, such as evaluating and compiling. 0 switches the
            watchdog off.
    """

    priority = 'VERY_HIGH'

    def __init__(self, timeout: float = 1800) -> None:
        if timeout < 0:
            raise InputError(f'timeout of WatchdogHook must be 0 or more seconds, got {timeout}')
        self.timeout = timeout
        self.begun = 0
        self.last = time.monotonic()

    def before_run(self, runner: Runner) -> None:
        if self.timeout:
            train_within(lambda: self.watching(lambda: runner.iter + 1), runner)

    @contextmanager
    def watching(self, iteration: Callable[[], int]) -> Iterator[None]:
        """Context in which a thread watches this process.

        Args:
            iteration: Returns the iteration that this process is in, for the report.
        """
        # A connection of its own: the process may hang while it uses the other.
        store = _get_default_store().clone() if get_world_size() > 1 else HashStore()
        ended = threading.Event()
        self.last = time.monotonic()
        thread = threading.Thread(target=self._watch, args=(store, ended, iteration), daemon=True, name='watchdog')
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(1)

    def before_train_iter(self, *_: object, **__: object) -> None:
        self.begun += 1
        self.last = time.monotonic()

    before_val_iter = before_train_iter
    after_train_iter = after_val_iter = before_train_iter

    def _watch(self, store: Store, ended: threading.Event, iteration: Callable[[], int]) -> None:
        interval = min(self.timeout / 4, 5)
        rank, size, host = get_rank(), get_world_size(), socket.gethostname()
        try:
            while not ended.wait(interval):
                store.set(f'{HANG}/{rank}', f'{self.begun} {_collectives()} {iteration()} {host}')
                if not store.check([HANG]) and time.monotonic() - self.last < self.timeout:
                    continue
                first = store.add(HANG, 1) == 1
                _write(_stacks(f'rank {rank} on {host}, in iteration {iteration()}: the stacks of its threads'))
                if first:
                    # The others look as often, and note their last numbers.
                    time.sleep(2 * interval)
                    _write(f'error: {self._reason(store, size)}\n')
                store.add(f'{HANG}/done', 1)
                self._wait_for_others(store, size, 4 * interval + 1)
                os._exit(EXIT_CODE)
        except RuntimeError:  # the store is gone: so is its process, rank 0
            if not ended.is_set() and time.monotonic() - self.last >= self.timeout:
                _write(_stacks(f'rank {rank} on {host}, in iteration {iteration()}: the stacks of its threads'))
                os._exit(EXIT_CODE)

    def _reason(self, store: Store, size: int) -> str:
        """Which ranks are behind."""
        progress = {}
        for rank in range(size):
            if not store.check([f'{HANG}/{rank}']):
                progress[rank] = (0, 0, '?', 'an unknown host')
                continue
            begun, collectives, iteration, host = store.get(f'{HANG}/{rank}').decode().split(maxsplit=3)
            progress[rank] = (int(begun), int(collectives), iteration, host)
        least = min(value[:2] for value in progress.values())
        behind = {rank: value for rank, value in progress.items() if value[:2] == least}
        nothing = f'nothing has happened for {self.timeout:g} seconds'
        if len(behind) == size:
            return f'{nothing}, and no rank is behind: see the stacks'
        names = ', '.join(f'rank {rank} on {host} (iteration {it})' for rank, (_, _, it, host) in behind.items())
        return f'{nothing}, because the others wait for {names}: see its stacks'

    @staticmethod
    def _wait_for_others(store: Store, size: int, seconds: float) -> None:
        """Wait until all ranks have printed, or for a while: a process that is stopped never does."""
        end = time.monotonic() + seconds
        while store.add(f'{HANG}/done', 0) < size and time.monotonic() < end:
            time.sleep(0.05)
        if get_rank() == 0:  # its process keeps the store, in which the others look
            time.sleep(0.2)


def _collectives() -> int:
    """How many collective operations this process has begun."""
    return _get_default_group()._get_sequence_number_for_group() if get_world_size() > 1 else 0


def _stacks(title: str) -> str:
    """The Python stacks of all threads, the latest call first."""
    with tempfile.TemporaryFile('w+', encoding='utf-8') as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return f'{title}\n{file.read()}\n'


def _write(text: str) -> None:
    """Write to stderr at once, whatever other threads and processes do."""
    sys.stderr.flush()
    os.write(2, text.encode())
