"""Images for the tools of analysis, and runs of these."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from ..tools.running import InProcess
from .small_backbones import ON_CPU


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A dataset's folder with three images, 40 x 60 pixels, left half darker than the right one."""
    folder = tmp_path / 'data' / 'images'
    folder.mkdir(parents=True)
    values = np.random.default_rng(0).integers(0, 128, (3, 40, 60, 3), dtype=np.uint8)
    values[:, :, 30:] += 127
    for number, value in enumerate(values):
        Image.fromarray(value).save(folder / f'image_{number}.png')
    return folder


class Written(NamedTuple):
    """What a tool printed and wrote: its JSON file, the rows of its CSV file, and the folder."""

    printed: str
    document: dict
    rows: list[dict[str, str]]
    folder: Path


@pytest.fixture
def run(tmp_path: Path, tool: InProcess) -> Callable[..., Written]:
    """Runs a tool of analysis, such as 'erf', on the CPU; its drawings show something."""

    def run(name: str, *words: object, out: str = 'out') -> Written:
        device = () if name == 'model_stats' else ON_CPU
        printed, folder = tool(tmp_path, f'analysis/{name}.py', *words, '--out', out, *device), tmp_path / out
        assert (drawings := list(folder.glob('*.png')))
        for path in drawings:
            with Image.open(path) as image:
                assert np.asarray(image.convert('L')).std() > 10
        table = folder / f'{name}.csv'
        rows = list(csv.DictReader(table.read_text().splitlines())) if table.exists() else []
        return Written(printed, json.loads((folder / f'{name}.json').read_text()), rows, folder)

    return run
