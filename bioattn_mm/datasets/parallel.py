"""Work on many files: which of them, and in threads."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

# NumPy, OpenCV and Pillow release the GIL only for a part of the time: more threads would wait for it.
MAX_THREADS = 4


def spread(number: int, maximum: int | None) -> list[int]:
    """At most `maximum` of the indices below `number`, evenly spread; None for all."""
    if maximum is None or number <= maximum:
        return list(range(number))
    return np.linspace(0, number - 1, maximum).astype(int).tolist()


def run_all(function: Callable, count: int, advance: Callable[[], object] = lambda: None) -> list:
    """Call `function(index)` for all indices below `count`, in any order.

    Args:
        function: What to call.
        count: How often.
        advance: Called after each, in the order of the indices.

    Returns:
        The results in the order of the indices.
    """
    results = []
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        try:
            for result in pool.map(function, range(count)):
                results.append(result)
                advance()
        finally:
            pool.shutdown(cancel_futures=True)  # on an error or Ctrl-C, do not go on
    return results
