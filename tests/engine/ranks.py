"""Functions that run in processes of their own, several of them as ranks of one gloo group."""

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

import bioattn_mm  # noqa: F401  before a process imports mmdet and mmseg, which need mmcv.ops

# Processes are forked from one that has imported the libraries and done nothing else.
CONTEXT = multiprocessing.get_context('forkserver')
CONTEXT.set_forkserver_preload(['tests.engine.ranks', 'tests.engine.trainings', 'tests.engine.toy_run'])


def run_ranks(
    function: Callable, *args: object, folder: Path, world_size: int = 1, timeout: float = 600
) -> list[int]:
    """Run `function(*args)` in each of `world_size` processes in a folder; return their exit codes.

    An exception ends its process with code 1 and stands in `rank{i}.txt` of the folder. They can join a group, as if
    torchrun had started them.
    """
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    processes = [
        CONTEXT.Process(target=_rank, args=(rank, world_size, port, folder, function, args))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes


def reasons(folder: Path) -> str:
    """What the processes of a folder failed with."""
    return '\n'.join(path.read_text() for path in sorted(folder.glob('rank*.txt')))


def _rank(rank: int, world_size: int, port: int, folder: Path, function: Callable, args: tuple) -> None:
    os.chdir(folder)
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        MASTER_ADDR='127.0.0.1',
        MASTER_PORT=str(port),
    )
    try:
        function(*args)
    except Exception:
        Path(f'rank{rank}.txt').write_text(traceback.format_exc())
        # Not sys.exit: it would wait for the other ranks.
        os._exit(1)
