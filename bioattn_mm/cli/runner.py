"""Building the Runner of a config, and the clock for what it runs."""

import time

import torch
from mmengine.config import Config
from mmengine.registry import RUNNERS
from mmengine.runner import FlexibleRunner, Runner


def build_runner(config: Config) -> Runner | FlexibleRunner:
    """Build the Runner of a config, of the class that its `runner_type` names, if any."""
    runner_type = RUNNERS.get(config.runner_type) if 'runner_type' in config else Runner
    return runner_type.from_cfg(config)


def now() -> float:
    """Seconds on a clock for differences, after what the GPU was told to do is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
