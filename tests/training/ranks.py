"""Functions that run in processes of their own, several of them as ranks of one gloo group."""

import copy
import gc
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import torch
from mmengine.config import Config
from mmengine.dataset import base_dataset

import bioattn_mm  # noqa: F401  before a process imports mmdet and mmseg, which need mmcv.ops
from bioattn_mm.training.config import config_text

# Processes are forked from one that has imported the libraries and done nothing else.
CONTEXT = multiprocessing.get_context('forkserver')
CONTEXT.set_forkserver_preload(['tests.training.ranks', 'mmdet.models', 'mmseg.models', 'tests.training.toy_run'])
CHECKOUT = Path(__file__).resolve().parents[2]


def make_runs_quick() -> None:
    """Leave out what takes a second or two of every run."""
    if find_spec('mmdeploy') is None:  # which finds what it rewrites by the collector's references
        gc.freeze()
    base_dataset.gc = Mock()  # collects for each dataset
    config_text._format_code = lambda text, style_config: (text, True)  # not by yapf
    os.fsync = lambda descriptor: None  # no test looks for a checkpoint after a loss of power
    _read_configs_once()


def _read_configs_once() -> None:
    """Let mmengine keep what it has read of a config of the checkout, in which no test changes one, and its bases."""
    read, kept = Config._file2dict, {}

    def read_once(filename: str, *args: object, **kwargs: object) -> tuple:
        path = Path(filename).expanduser().absolute()
        if not path.resolve().is_relative_to(CHECKOUT):
            return read(filename, *args, **kwargs)
        key = (path, args, tuple(kwargs.items()))
        if key not in kept:
            kept[key] = read(filename, *args, **kwargs)
        return copy.deepcopy(kept[key])

    Config._file2dict = staticmethod(read_once)


def run_ranks(function: Callable, *args: object, folder: Path, world_size: int = 1) -> None:
    """Run `function(*args)` in each of `world_size` processes in a folder, all of which must succeed."""
    codes = exit_codes(function, *args, folder=folder, world_size=world_size)
    failures = [path.read_text() for path in sorted(folder.glob('rank*.txt'))]
    assert codes == [0] * world_size, '\n'.join(map(str, (codes, *failures)))


def exit_codes(function: Callable, *args: object, folder: Path, world_size: int = 1) -> list[int]:
    """The same, however the processes end; an exception ends one with code 1 and stands in `rank{i}.txt`.

    They can join a group, as if torchrun had started them.
    """
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    arguments = [(rank, world_size, port, folder, function, args) for rank in range(world_size)]
    processes = [CONTEXT.Process(target=_rank, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(600)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes


def run_program(*words: object, folder: Path, world_size: int = 1, **environment: str) -> subprocess.CompletedProcess:
    """Run a Python program as `python WORDS...` or torchrun does, without the seconds in which it imports libraries.

    Returns what all processes printed, one after the other, and the first exit code that is not 0. The words name a
    script, a module after '-m', or code after '-c'; there may be more variables of the environment.
    """
    with tempfile.TemporaryDirectory() as printed:
        arguments = ([str(word) for word in words], printed, environment)
        codes = exit_codes(_program, *arguments, folder=folder, world_size=world_size)
        out, errors = (
            ''.join(Path(printed, f'{name}{rank}.txt').read_text() for rank in range(world_size))
            for name in ('out', 'errors')
        )
    return subprocess.CompletedProcess(words, next(filter(None, codes), 0), out, errors)


def _program(words: list[str], printed: str, environment: dict[str, str]) -> None:
    """Run `python WORDS...` in this process; what it prints goes into two files of a folder."""
    os.environ.update(environment)
    for name, stream in (('out', sys.stdout), ('errors', sys.stderr)):
        with Path(printed, f'{name}{os.environ["RANK"]}.txt').open('w') as file:
            os.dup2(file.fileno(), stream.fileno())
    try:
        if words[0] == '-c':
            sys.argv = ['-c', *words[2:]]
            exec(words[1], dict(__name__='__main__'))
        elif words[0] == '-m':
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name='__main__', alter_sys=True)
        else:
            sys.argv = words
            sys.path.insert(0, str(Path(words[0]).resolve().parent))
            runpy.run_path(words[0], run_name='__main__')
    except Exception:
        traceback.print_exc()
        sys.exit(1)


def _rank(rank: int, world_size: int, port: int, folder: Path, function: Callable, args: tuple) -> None:
    os.chdir(folder)
    torch.set_num_threads(1)
    make_runs_quick()
    group = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), WORLD_SIZE=str(world_size))
    os.environ.update(group, RANK=str(rank), LOCAL_RANK=str(rank))
    try:
        function(*args)
    except Exception:
        Path(f'rank{rank}.txt').write_text(traceback.format_exc())
        # Not sys.exit: it would wait for the other ranks.
        os._exit(1)
