"""Time and peak memory of a call, on the CPU and on a GPU."""

import ctypes
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass
class Measurement:
    """Seconds of the fastest run, and MiB taken at the peak beyond what was there before."""

    seconds: float
    mebibytes: float


def measure(function: Callable[[], object], device: str = 'cpu', repeats: int = 3) -> Measurement:
    """Run `function` `repeats` times and keep the fastest run and the highest peak."""
    seconds = []
    with PeakMemory(device) as peak:
        for _ in range(repeats):
            start = time.perf_counter()
            function()
            if device == 'cuda':
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    return Measurement(min(seconds), peak.mebibytes)


class PeakMemory:
    """Context that measures the peak of memory above its level at entry (on the CPU: resident memory, Linux)."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.mebibytes = 0.0

    def __enter__(self) -> 'PeakMemory':
        gc.collect()
        if self.device == 'cuda':
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        else:
            ctypes.CDLL(None).malloc_trim(0)
            # Resets the kernel's record of the highest resident memory.
            with open('/proc/self/clear_refs', 'w') as file:
                file.write('5')
            self._before = _resident_peak()
        return self

    def __exit__(self, *exception: object) -> None:
        after = torch.cuda.max_memory_allocated() if self.device == 'cuda' else _resident_peak()
        self.mebibytes = (after - self._before) / 2**20


def _resident_peak() -> int:
    with open('/proc/self/status') as file:
        line = next(line for line in file if line.startswith('VmHWM:'))
    return int(line.split()[1]) * 1024
