"""Folders of own data, drawn once, of which each test gets a copy."""

import shutil
from pathlib import Path

import pytest

from ...own_folders import write_coco_folder, write_mask_folder

SEEDS, VAL_SEEDS = range(8), range(50, 54)


@pytest.fixture(scope='session')
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('own')
    write_coco_folder(folder / 'parts', SEEDS)
    write_mask_folder(folder / 'scenes', SEEDS)
    return folder


@pytest.fixture
def parts(drawn: Path, tmp_path: Path) -> Path:
    """Images with objects in COCO's format."""
    return shutil.copytree(drawn / 'parts', tmp_path / 'parts')


@pytest.fixture
def scenes(drawn: Path, tmp_path: Path) -> Path:
    """Images with label maps."""
    return shutil.copytree(drawn / 'scenes', tmp_path / 'scenes')
