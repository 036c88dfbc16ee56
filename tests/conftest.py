"""Fixtures shared by all tests."""

from pathlib import Path

import pytest
import torch

from bioattn_mm.datasets.mini import make_mini_datasets

ROOT = Path(__file__).parents[1]


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
    make_mini_datasets(folder / 'data' / 'mini', progress=False)
    return folder
