"""What the tools set for the whole process before PyTorch is loaded, if the user has not: they import this first.

Threads that wait for each other spin for about twenty microseconds, then sleep. By default OpenMP's spin for
milliseconds between two parallel loops, and where processes share cores, all become several times slower. To wake a
thread takes longer than many loops: asleep at once, two threads train a miniature hardly faster than one.

Memory that was freed is kept. By default the GNU C library returns blocks above 32 MiB to the system at once, and
every training step gets its activations anew, each page cleared: a tenth of the time of TransNeXt-T at 512 x 512.
"""

import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of `mallopt`, from malloc.h
MALLOC_VARIABLES = ('MALLOC_TRIM_THRESHOLD_', 'MALLOC_MMAP_THRESHOLD_', 'GLIBC_TUNABLES')


def keep_freed_memory() -> None:
    """Let blocks of up to 1 GiB be reused instead of returned to the system; nothing without the GNU C library."""
    if sys.platform != 'linux' or any(name in os.environ for name in MALLOC_VARIABLES):
        return
    mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 2**30)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


if 'OMP_WAIT_POLICY' not in os.environ:
    os.environ['OMP_WAIT_POLICY'] = 'PASSIVE'
    os.environ.setdefault('GOMP_SPINCOUNT', '1000')  # of GNU's OpenMP, which PyTorch has on Linux
keep_freed_memory()
