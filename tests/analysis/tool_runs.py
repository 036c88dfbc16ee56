"""Configs of small backbones for the tools of analysis."""

from pathlib import Path

from .small_backbones import BACKBONES

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
