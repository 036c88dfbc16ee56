"""Fixtures shared by all tests."""

from pathlib import Path

import pytest
import torch

from bioattn_mm import compat

compat.install()

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def root() -> Path:
    """The repository's root."""
    return ROOT
