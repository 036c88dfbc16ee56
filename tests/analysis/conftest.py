"""Images for the tools of analysis."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A dataset's folder with three images, 40 x 60 pixels, left half darker than the right one."""
    folder = tmp_path / 'data' / 'images'
    folder.mkdir(parents=True)
    values = np.random.default_rng(0).integers(0, 128, (3, 40, 60, 3), dtype=np.uint8)
    values[:, :, 30:] += 127
    for number, value in enumerate(values):
        Image.fromarray(value).save(folder / f'image_{number}.png')
    (folder / 'notes.txt').write_text('no image')
    return folder
