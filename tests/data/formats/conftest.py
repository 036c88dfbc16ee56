"""Folders of own data, and changes of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ...own_folders import write_coco_folder, write_mask_folder

SEEDS, VAL_SEEDS = range(8), range(50, 54)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Images with objects in COCO's format."""
    return write_coco_folder(tmp_path / 'parts', SEEDS)


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    """Images with label maps."""
    return write_mask_folder(tmp_path / 'scenes', SEEDS)


def put(path: str, content: str | bytes) -> Callable:
    """A change of a folder: a file of a content."""

    def write(folder: Path) -> None:
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(content if isinstance(content, bytes) else content.encode())

    return write
