"""What the tools set for the whole process before PyTorch is loaded: they import this module first.

Threads wait for each other asleep, so that other processes can use their cores. By default OpenMP's threads spin
between two parallel loops. Where processes share cores, each then keeps the others from computing, and all become
several times slower. OpenMP reads the variable once, when PyTorch is loaded.

Memory that was freed is kept for the next allocation. By default the GNU C library returns blocks above 32 MiB to the
system at once, and every training step gets its activations anew, page by page, each cleared: a tenth of the time of
TransNeXt-T in float32 at 512 x 512.

What the user has set stays.
"""

import ctypes
import os
import sys

# Parameters of `mallopt`, from malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_BLOCK = 1 << 30
LARGEST_INT = (1 << 31) - 1
MALLOC_VARIABLES = ('MALLOC_TRIM_THRESHOLD_', 'MALLOC_MMAP_THRESHOLD_', 'GLIBC_TUNABLES')


def keep_freed_memory() -> None:
    """Let blocks of up to 1 GiB be reused instead of returned to the system; nothing without the GNU C library."""
    if sys.platform != 'linux' or any(name in os.environ for name in MALLOC_VARIABLES):
        return
    mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK)
        mallopt(M_TRIM_THRESHOLD, LARGEST_INT)


os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
keep_freed_memory()
