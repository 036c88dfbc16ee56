"""A small miniature, made once for all tests of the datasets."""

from pathlib import Path

import pytest

from bioattn_mm.data.mini import make_mini_datasets

NUM_TRAIN, NUM_VAL = 12, 4


@pytest.fixture(scope='session')
def mini(tmp_path_factory) -> dict[str, Path]:
    """Folders of a miniature of 12 training and 4 validation images."""
    return make_mini_datasets(tmp_path_factory.mktemp('data'), NUM_TRAIN, NUM_VAL, progress=False)
