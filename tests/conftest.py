"""Fixtures shared by all tests."""

from pathlib import Path

import pytest
import torch

from bioattn_mm import compat

compat.install()

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
