#!/usr/bin/env python
"""Save a sharded training in two processes: as one file through rank 0 (mmengine's FSDP), and in parts (FSDP2).

Printed for each rank: how long training stands still, and how much of that its thread computes; how long it takes
until the checkpoint is whole; the memory that saving takes at its peak beyond what the process had before. There is
one optimizer step with gradients of zero.
"""

import argparse
import ctypes
import gc
import os
import socket
import tempfile
import time
from functools import partial
from pathlib import Path

import bioattn_mm.process_settings  # noqa: F401

import torch
import torch.multiprocessing as multiprocessing
from measure import print_header, print_row, time_text
from mmengine.config import Config
from mmengine.dist import barrier
from mmengine.registry import STRATEGIES, init_default_scope
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy

from bioattn_mm.run_config.distributed import prepare_process
from bioattn_mm.run_config.model_check import model_of

PROCESSES = 2
# What mmengine's FSDP saves: all weights and the optimizer's whole state, gathered in rank 0.
FULL = dict(
    state_dict_type='FULL_STATE_DICT',
    state_dict_config=dict(type='FullStateDictConfig', rank0_only=True),
    optim_state_dict_config=dict(type='FullOptimStateDictConfig', rank0_only=True),
)


def peak() -> int:
    """The most bytes of memory that this process has had since `reset_peak`."""
    lines = Path('/proc/self/status').read_text(encoding='utf-8').splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith('VmHWM'))


def reset_peak() -> None:
    """Let `peak` begin with what this process has now, and what was freed given back."""
    gc.collect()
    ctypes.CDLL('libc.so.6').malloc_trim(0)
    Path('/proc/self/clear_refs').write_text('5', encoding='utf-8')


def wrapped_like_ours(config: Config) -> dict:
    """mmengine's FSDP with a unit for each block of the backbone."""
    types = tuple({type(block) for block in model_of(config).backbone.block_modules()})
    policy = partial(lambda_auto_wrap_policy, lambda_fn=lambda module: isinstance(module, types))
    return dict(type='MMFullyShardedDataParallel', auto_wrap_policy=policy, device_id='cpu', use_orig_params=True)


def save(rank: int, kind: str, path: str, port: int, folder: str, results: multiprocessing.SimpleQueue) -> None:
    """Shard a config's model, take a step and save it, as one of the processes."""
    ranks = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=PROCESSES, MASTER_ADDR='127.0.0.1', MASTER_PORT=port)
    os.environ.update({name: str(value) for name, value in ranks.items()})
    os.chdir(folder)
    config = Config.fromfile(path)
    config.model.backbone.pop('init_cfg', None)
    init_default_scope(config.default_scope)
    prepare_process(config, 'pytorch')
    common = dict(work_dir=folder, env_kwargs=dict(launcher='pytorch', randomness=dict(seed=0)))
    if kind == 'FSDP':
        common.update(type='FSDPStrategy', model_wrapper=wrapped_like_ours(config), state_dict_cfg=FULL)
    else:
        common.update(type='bioattn_mm.FSDP2Strategy')
    strategy = STRATEGIES.build(dict(log_kwargs=dict(log_level='ERROR'), **common))
    strategy.prepare(config.model, optim_wrapper=dict(optimizer=dict(type='AdamW', lr=1e-4)))
    optimizer = strategy.optim_wrapper.optimizer
    for parameter in strategy.model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    optimizer.zero_grad()
    barrier()

    reset_peak()
    before, start, busy = peak(), time.perf_counter(), time.thread_time()
    strategy.save_checkpoint(str(Path(folder, 'iter_1.pth')))
    stopped, busy = time.perf_counter() - start, time.thread_time() - busy
    getattr(strategy, 'finish_saving', barrier)()
    whole = time.perf_counter() - start
    results.put((rank, stopped, busy, whole, before, peak() - before))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', nargs='?', default='configs/transnext/mask2former_base_ade20k.py')
    args = parser.parse_args()
    print(f'{Path(args.config).stem}, {PROCESSES} processes over gloo, AdamW, float32\n')
    print_header(
        'saved by', 'rank', 'training stands still', 'of that busy', 'until whole', 'memory for it', 'on disk'
    )
    for kind in ('FSDP', 'FSDP2'):
        with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            results = multiprocessing.get_context('spawn').SimpleQueue()
            arguments = (kind, str(Path(args.config).resolve()), free.getsockname()[1], folder, results)
            free.close()
            multiprocessing.spawn(save, arguments, PROCESSES)
            path = Path(folder, 'iter_1.pth')
            size = sum(file.stat().st_size for file in (path, *path.rglob('*')) if file.is_file())
            for rank, stopped, busy, whole, before, more in sorted(results.get() for _ in range(PROCESSES)):
                memory = f'{more / 2**20:.0f} MiB, {(before + more) / 2**20:.0f} MiB in all'
                print_row(
                    kind,
                    rank,
                    time_text(stopped),
                    time_text(busy),
                    time_text(whole),
                    memory,
                    f'{size / 2**20:.0f} MiB',
                )


if __name__ == '__main__':
    main()
