"""Fixtures of the tests that run the tools."""

from pathlib import Path

import pytest

from bioattn_mm.datasets import make_mini_datasets


@pytest.fixture(scope='session')
def workplace(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the configs and miniature data, in which the tools run."""
    folder = tmp_path_factory.mktemp('workplace')
    (folder / 'configs').symlink_to(root / 'configs')
    make_mini_datasets(folder / 'data' / 'mini', progress=False)
    return folder
