"""Fixtures shared by all tests."""

from pathlib import Path

import pytest
import torch

from bioattn_mm.datasets.mini import make_mini_datasets

from .tools.running import InProcess

ROOT = Path(__file__).parents[1]
# Images of each dataset of the workplace, half as many as the tools draw by themselves.
NUM_TRAIN, NUM_VAL = 120, 20


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that run whole trainings first, so that parallel workers end at about the same time."""
    items.sort(key=lambda item: item.path.parent.name != 'tools')


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope='session')
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope='session')
def workplace(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the configs and miniature data, in which the tools run."""
    folder = tmp_path_factory.mktemp('workplace')
    (folder / 'configs').symlink_to(root / 'configs')
    make_mini_datasets(folder / 'data' / 'mini', NUM_TRAIN, NUM_VAL, progress=False)
    return folder


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> InProcess:
    """Runs tools in the test's own process."""
    return InProcess(monkeypatch, capsys)
