"""Building the Runner of a config, what may stop its training, and the clock for what it runs."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from mmengine.config import Config
from mmengine.registry import RUNNERS
from mmengine.runner import FlexibleRunner, Runner

from ..errors import InputError


def build_runner(config: Config) -> Runner | FlexibleRunner:
    """Build the Runner of a config, of the class that its `runner_type` names, if any."""
    runner_type = RUNNERS.get(config.runner_type) if 'runner_type' in config else Runner
    return runner_type.from_cfg(config)


@contextmanager
def nondeterminism_in_one_line() -> Iterator[None]:
    """Around a training: an operation without a deterministic kernel raises an `InputError` that names it."""
    try:
        yield
    except RuntimeError as error:
        operation = re.search(r'(\w+) does not have a deterministic implementation', str(error))
        if not operation:
            raise
        raise InputError(
            f'{operation[1]} has no deterministic kernel on this device: to train with losses that differ a little '
            f'from run to run, leave out --deterministic (in a config: randomness.deterministic)'
        ) from error


def now() -> float:
    """Seconds on a clock for differences, after what the GPU was told to do is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
