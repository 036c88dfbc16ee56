"""Work on many files, in threads."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

# NumPy, OpenCV and Pillow release the GIL only for a part of the time: more threads would wait for it.
MAX_THREADS = 4


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
