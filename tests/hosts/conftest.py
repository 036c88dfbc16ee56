"""A user's folder outside of the checkout, in which the host libraries run."""

import os
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


@pytest.fixture(scope='session')
def python(place: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Runs a new interpreter in the folder; it must succeed."""

    def run(*args: object) -> subprocess.CompletedProcess:
        process = subprocess.run(
            [sys.executable, *map(str, args)], cwd=place, env=os.environ, capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stderr[-3000:]
        return process

    return run


@pytest.fixture(scope='session')
def forked(place: Path) -> Callable[..., subprocess.CompletedProcess]:
    """The same in a process that has the libraries imported, which takes seconds less."""

    def run(*args: object) -> subprocess.CompletedProcess:
        process = run_program(*args, folder=place)
        assert process.returncode == 0, process.stderr[-3000:]
        return process

    return run
