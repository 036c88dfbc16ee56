"""A user's folder outside of the checkout, in which the host libraries run."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bioattn_mm.data.mini import make_mini_datasets
from tests.training.ranks import run_program


@pytest.fixture(scope='session')
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder: it has data where the configs look for them, 4 training and 2 validation images of each dataset."""
    folder = tmp_path_factory.mktemp('place')
    made = make_mini_datasets(folder / 'made', 4, 2, progress=False)
    (folder / 'data/ade').mkdir(parents=True)
    (folder / 'data/ade' / made['ade20k'].name).symlink_to(made['ade20k'])
    (folder / 'data/coco').symlink_to(made['coco'])
    return folder


def succeeded(process: subprocess.CompletedProcess) -> subprocess.CompletedProcess:
    assert process.returncode == 0, process.stderr[-3000:]
    return process


@pytest.fixture(scope='session')
def python(place: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Runs a new interpreter in the folder; it must succeed."""

    def run(*args: object) -> subprocess.CompletedProcess:
        command = [sys.executable, *map(str, args)]
        return succeeded(subprocess.run(command, cwd=place, capture_output=True, text=True, check=False))

    return run


@pytest.fixture(scope='session')
def forked(place: Path) -> Callable[..., subprocess.CompletedProcess]:
    """The same in a process that has the libraries imported, which takes seconds less."""
    return lambda *args: succeeded(run_program(*args, folder=place))
