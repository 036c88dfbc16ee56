#!/usr/bin/env python
"""Look for memory leaks: train for long on miniature data and watch the memory.

The exit code is 1 if the last fifth of the run takes more than 2 % more memory than the second fifth.
"""

import argparse
import multiprocessing
import os
import resource
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner

from bioattn_mm.registry import HOOKS
from bioattn_mm.run_config.mini import ensure_mini_data, make_mini

LIMIT = 0.02


@HOOKS.register_module()
class MemoryHook(Hook):
    """Record the memory after every iteration, in MiB: the GPU's, or that of this process and its workers."""

    readings: list[float] = []

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if torch.cuda.is_available():
            num_bytes = torch.cuda.memory_allocated()
        else:
            processes = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
            pages = sum(int(Path(f'/proc/{pid}/statm').read_text(encoding='utf-8').split()[1]) for pid in processes)
            num_bytes = pages * resource.getpagesize()
        self.readings.append(num_bytes / 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', nargs='?', default='configs/transnext/upernet_micro_ade20k.py')
    parser.add_argument('--iterations', type=int, default=500)
    args = parser.parse_args()

    config = make_mini(Config.fromfile(args.config))
    ensure_mini_data()
    config.train_cfg.update(max_iters=args.iterations, val_interval=10**9)
    config.default_hooks.checkpoint.interval = args.iterations // 5
    config.custom_hooks = [*config.get('custom_hooks', []), dict(type='bioattn_mm.MemoryHook')]
    with tempfile.TemporaryDirectory() as folder:
        config.work_dir = folder
        Runner.from_cfg(config).train()

    fifths = [part.mean() for part in np.array_split(MemoryHook.readings, 5)]
    growth = fifths[-1] / fifths[1] - 1
    print(f'Mean memory of each fifth of {args.iterations} iterations, MiB: {", ".join(f"{m:.0f}" for m in fifths)}')
    print(f'Growth from the second to the last: {100 * growth:.2f} % (limit {100 * LIMIT:.0f} %)')
    sys.exit(growth > LIMIT)


if __name__ == '__main__':
    main()
