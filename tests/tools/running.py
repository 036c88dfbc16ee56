"""Running the tools, in new processes or in this one, and reading what they wrote."""

import csv
import json
import os
import runpy
import socket
import subprocess
import sys
import traceback
import weakref
from pathlib import Path

import pytest
import torch
from mmengine.utils import ManagerMixin
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ..training.ranks import run_program

ROOT = Path(__file__).parents[2]


def run_forked(folder: Path, tool: str, *args: object, world_size: int = 1, **environment: str) -> str:
    """Run a tool in a folder, with more variables of the environment; return what it printed.

    It runs in a process that has the libraries imported, or in several as `--launcher pytorch` expects them.
    """
    launcher = ('--launcher', 'pytorch') if world_size > 1 else ()
    if 1 <= torch.cuda.device_count() < world_size:  # then the CPU
        environment['CUDA_VISIBLE_DEVICES'] = ''
    ended = run_program(ROOT / 'tools' / tool, *args, *launcher, folder=folder, world_size=world_size, **environment)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def free_port() -> int:
    with socket.socket() as free:
        free.bind(('', 0))
        return free.getsockname()[1]


def run_script(folder: Path, script: str, *args: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a script as a user does who has the environment active."""
    command, env = [ROOT / 'tools' / script, *args], dict(PYTHON=sys.executable, PORT=str(free_port())) | environment
    return subprocess.run(command, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, check=False)


def make_user_folder(folder: Path, workplace: Path) -> Path:
    """Link the configs, and the miniature data of `workplace` where README says to unpack data; return `folder`."""
    (folder / 'configs').symlink_to(ROOT / 'configs')
    (folder / 'data/ade').mkdir(parents=True)
    for place in ('ade/ADEChallengeData2016', 'coco', 'imagenet'):
        (folder / 'data' / place).symlink_to(workplace / 'data/mini' / Path(place).name)
    return folder


class LoaderWorkers:
    """Ends the workers of data loaders when a run is over.

    The garbage collector may close the queues to them first: PyTorch then waits five seconds for each worker.
    """

    iterators: weakref.WeakSet = weakref.WeakSet()

    @classmethod
    def watch(cls, monkeypatch: pytest.MonkeyPatch) -> None:
        make = _MultiProcessingDataLoaderIter.__init__

        def make_and_watch(iterator: _MultiProcessingDataLoaderIter, *args: object) -> None:
            make(iterator, *args)
            cls.iterators.add(iterator)

        monkeypatch.setattr(_MultiProcessingDataLoaderIter, '__init__', make_and_watch)

    @classmethod
    def end(cls) -> None:
        for iterator in list(cls.iterators):
            iterator._shutdown_workers()


class InProcess:
    """Runs tools in this process, which has the libraries imported: for all that does not depend on a new one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, folder: Path, tool: str, *args: object) -> str:
        """Run `tools/{tool}` in a folder; return what it printed."""
        self.monkeypatch.chdir(folder)
        self.monkeypatch.setattr(sys, 'argv', [str(ROOT / 'tools' / tool), *map(str, args)])
        self.capsys.readouterr()
        forget_runs()
        try:
            runpy.run_path(sys.argv[0], run_name='__main__')
        except BaseException as error:
            # A progress bar that the garbage collector ends, while another one is drawn, would wait for itself.
            traceback.clear_frames(error.__traceback__)
            raise
        finally:
            LoaderWorkers.end()
        return self.capsys.readouterr().out

    def error(self, folder: Path, tool: str, *args: object) -> str:
        """Run a tool that must end with exit code 2; return its error line."""
        with pytest.raises(SystemExit) as exit_:
            self(folder, tool, *args)
        assert exit_.value.code == 2
        return self.capsys.readouterr().err.splitlines()[-1]

    def refused(self, folder: Path, tool: str, *args: object) -> str:
        """The same, and it must not have made anything in the folder."""
        before = set(folder.rglob('*'))
        line = self.error(folder, tool, *args)
        assert set(folder.rglob('*')) == before
        return line


def forget_runs(kind: type = ManagerMixin) -> None:
    """Let the next run of this process have its own logger and visualizer, and write to its own files."""
    for child in kind.__subclasses__():
        child._instance_dict.clear()
        forget_runs(child)


def scalars(work_dir: Path) -> list[dict]:
    """What the newest training run logged: one line for each interval and each validation."""
    newest = max(work_dir.glob('*/vis_data/scalars.json'))
    return [json.loads(line) for line in newest.read_text().splitlines()]


def metrics_of_test(work_dir: Path) -> dict:
    """The metrics that tools/test.py wrote, without times."""
    (file,) = work_dir.glob('*/*.json')
    return {name: value for name, value in json.loads(file.read_text()).items() if 'time' not in name}


def last_validation(work_dir: Path) -> dict:
    """The metrics of the last validation of a training, without times."""
    line = [line for line in scalars(work_dir) if 'loss' not in line][-1]
    return {name: value for name, value in line.items() if 'time' not in name and name != 'step'}


def read_csv(path: Path) -> list[dict]:
    with path.open() as file:
        return list(csv.DictReader(file))
