"""Fixtures shared by all tests."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from bioattn_mm.datasets.mini import make_mini_datasets

from .tools.running import InProcess, LoaderWorkers

ROOT = Path(__file__).parents[1]
# Images of each dataset of the workplace, half as many as the tools draw by themselves.
NUM_TRAIN, NUM_VAL = 120, 20


# Files that run trainings, by what they cost.
LONGEST = (
    'test_every_config.py',
    'test_real_run.py',
    'test_train_and_test.py',
    'test_interruption.py',
    'test_strategies.py',
    'test_mmdet.py',
    'test_distributed.py',
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: the short ones then let parallel workers end at about the same time."""
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(LONGEST)))


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def loader_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No workers of data loaders outlive a test."""
    LoaderWorkers.watch(monkeypatch)
    yield
    LoaderWorkers.end()


@pytest.fixture(scope='session')
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope='session')
def workplace(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the configs and miniature data, in which the tools run; parallel workers draw the data once."""
    folder = tmp_path_factory.mktemp('workplace')
    (folder / 'configs').symlink_to(root / 'configs')
    sizes = dict(num_train=NUM_TRAIN, num_val=NUM_VAL, progress=False)
    if 'PYTEST_XDIST_WORKER' in os.environ:
        drawn = tmp_path_factory.getbasetemp().parent / 'miniatures'  # in the folder of all workers
        with FileLock(f'{drawn}.lock'):
            make_mini_datasets(drawn, **sizes)
        shutil.copytree(drawn, folder / 'data/mini')
    else:
        make_mini_datasets(folder / 'data/mini', **sizes)
    return folder


@pytest.fixture
def bfloat16_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixed precision is tested on CPUs, too, that emulate it, and that the tools refuse."""
    monkeypatch.setattr('bioattn_mm.engine.amp.cpu_has_bfloat16', lambda: True)


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> InProcess:
    """Runs tools in the test's own process."""
    return InProcess(monkeypatch, capsys)
