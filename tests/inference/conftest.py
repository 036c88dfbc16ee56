"""Predictors of small models with random weights, which are made once."""

from pathlib import Path

import numpy as np
import pytest

from bioattn_mm import Predictor

from ..tools.random_weights import random_checkpoint

ROOT = Path(__file__).parents[2]
CONFIGS = {kind: str(ROOT / f'tests/tools/{name}_small.py') for kind, name in dict(
    segmentation='upernet', detection='mask_rcnn'
).items()}  # fmt: skip


@pytest.fixture(scope='session')
def checkpoints(workplace: Path) -> dict[str, str]:
    """Files of random weights by task, in the workplace."""
    for kind, config in CONFIGS.items():
        random_checkpoint(workplace / f'{kind}.pth', config)
    return {kind: str(workplace / f'{kind}.pth') for kind in CONFIGS}


@pytest.fixture(scope='session')
def segmentor(checkpoints: dict[str, str]) -> Predictor:
    return Predictor(CONFIGS['segmentation'], checkpoints['segmentation'], mini=True, device='cpu')


@pytest.fixture(scope='session')
def detector(checkpoints: dict[str, str]) -> Predictor:
    return Predictor(CONFIGS['detection'], checkpoints['detection'], mini=True, device='cpu')


@pytest.fixture
def image() -> np.ndarray:
    """Noise over a bright upper half, 40 x 60 pixels."""
    values = np.random.default_rng(0).integers(0, 128, (40, 60, 3), dtype=np.uint8)
    values[:20] += 127
    return values
