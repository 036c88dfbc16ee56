"""The number of Python calls that something makes."""

import cProfile
import gc
import pstats
from collections.abc import Callable


def calls_of(run: Callable[[], object]) -> int:
    """Calls of functions, of Python and of C, that Python makes in the second run of `run`.

    The garbage collector waits: what it frees of other tests' objects calls their callbacks.
    """
    run()
    profile = cProfile.Profile()
    gc.collect()
    gc.disable()
    try:
        profile.runcall(run)
    finally:
        gc.enable()
    return pstats.Stats(profile).total_calls
