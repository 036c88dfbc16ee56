"""A small segmentor with the backbone of any system, for images with a shorter side of 64 pixels; random weights."""

from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from ..analysis.small_backbones import BACKBONES, build

CONFIG = """
default_scope = 'mmseg'
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(type='SegDataPreProcessor', mean=[120, 110, 100], std=[60, 55, 50], bgr_to_rgb=True),
    backbone={backbone!r},
    decode_head=dict(type='FCNHead', in_channels={channels}, channels=8, num_convs=1, num_classes=150),
    test_cfg=dict(mode='slide', crop_size=(64, 64), stride=(43, 43)),
)
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(256, 64), keep_ratio=True),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
test_dataloader = dict(
    batch_size=1,
    dataset=dict(
        type='ADE20KDataset', data_root='data', data_prefix=dict(img_path='', seg_map_path=''), pipeline=pipeline
    )
)
test_evaluator = dict(type='IoUMetric')
"""


def save_segmentor(folder: Path, name: str, **options) -> tuple[str, str]:
    """Write config and checkpoint of a segmentor with one of `BACKBONES`, with more arguments of it: both files."""
    backbone = dict(type=f'bioattn_mm.{name}', **(BACKBONES[name] | options))
    config, checkpoint = folder / f'{name.lower()}.py', folder / f'{name.lower()}.pth'
    config.write_text(CONFIG.format(backbone=backbone, channels=build(name, **options).out_channels[-1]))
    init_default_scope('mmseg')
    torch.manual_seed(0)
    model = MODELS.build(Config.fromfile(config).model)
    for parameter in model.parameters():
        # As large as trained ones, so that attention and predictions are not the same everywhere.
        parameter.data += 0.1 * torch.randn_like(parameter)
    torch.nn.init.normal_(model.decode_head.conv_seg.weight, std=1.0)
    torch.save(dict(state_dict=model.state_dict(), meta={}), checkpoint)
    return str(config), str(checkpoint)
