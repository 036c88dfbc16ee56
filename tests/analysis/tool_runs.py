"""The tools of analysis on small backbones: their configs, and reading what they wrote."""

import csv
from pathlib import Path

import numpy as np
from PIL import Image

from .small_backbones import BACKBONES

ERF, MAPS, LOCALITY, SEGMENTATION, STATS = (
    f'analysis/{name}.py' for name in ('erf', 'attention_maps', 'locality', 'attention_segmentation', 'model_stats')
)
ON_CPU = ('--device', 'cpu')
CONFIG = """
default_scope = 'mmseg'
model = dict(
    backbone={backbone!r},
    data_preprocessor=dict(
        type='SegDataPreProcessor', mean=[120, 110, 100], std=[60, 55, 50], bgr_to_rgb=True, size=(64, 64)
    ),
)
pipeline = [
    dict(type='bioattn_mm.CheckedLoadImageFromFile'),
    dict(type='Resize', scale=(200, 64), keep_ratio=True),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
val_dataloader = dict(
    dataset=dict(type='ADE20KDataset', data_root={root!r}, data_prefix=dict(img_path='images'), pipeline=pipeline)
)
test_dataloader = val_dataloader
test_evaluator = dict()
"""


def write_config(folder: Path, name: str, **options) -> Path:
    backbone = dict(type=f'bioattn_mm.{name}', **(BACKBONES[name] | options))
    path = folder / f'{name.lower()}.py'
    path.write_text(CONFIG.format(backbone=backbone, root=str(folder / 'data')))
    return path


def read_csv(path: Path) -> list[dict]:
    with path.open() as file:
        return list(csv.DictReader(file))


def check_drawing(path: Path) -> None:
    with Image.open(path) as image:
        assert np.asarray(image.convert('L')).std() > 10
