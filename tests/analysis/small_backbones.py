"""A small backbone of every system, its arguments by the name of its class, and configs for the tools of analysis."""

from pathlib import Path

from torch import nn

from bioattn_mm.registry import MODELS

BACKBONES = dict(
    TransNeXt=dict(arch=dict(embed_dims=(8, 16, 24, 32), num_heads=(1, 2, 3, 4), depths=(1, 1, 1, 1))),
    GABSwin=dict(arch=dict(embed_dims=8, depths=(2, 2, 2, 2), num_heads=(1, 2, 2, 2)), window_size=4),
    ConViT=dict(arch=dict(embed_dims=16, num_layers=12, num_heads=4), local_up_to_layer=3, out_indices=(3,)),
    PerViT=dict(
        arch=dict(embed_dims=(4, 8, 8, 12), depths=(2, 2, 6, 2), stem_channels=(4, 4, 4), num_heads=2),
        out_indices=(1,),
    ),
    GABViT=dict(arch=dict(embed_dims=16, num_layers=12, num_heads=2), out_indices=(1, 2)),
    VARS=dict(
        arch=dict(block='deit', embed_dims=[8], depths=[12], num_heads=[2], feature_ratio=1),
        attention='vars_sd',
        out_indices=(1,),
        num_steps=2,
    ),
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


def build(name: str, **options: object) -> nn.Module:
    return MODELS.build(dict(type=f'bioattn_mm.{name}', **BACKBONES[name] | options))


def write_config(folder: Path, name: str, **options) -> Path:
    backbone = dict(type=f'bioattn_mm.{name}', **(BACKBONES[name] | options))
    path = folder / f'{name.lower()}.py'
    path.write_text(CONFIG.format(backbone=backbone, root=str(folder / 'data')))
    return path
