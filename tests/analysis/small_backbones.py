"""A small backbone of every system, by the name of its class, and models with it for images of 64 pixels a side."""

from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from tests.systems.common.small_backbones import CASES

# These options are added to the small backbones of the systems' tests: blocks behind the last output are left out.
OPTIONS = dict(
    TransNeXt={},
    GABSwin=dict(window_size=4),
    ConViT=dict(local_up_to_layer=3, out_indices=(3,)),
    PerViT=dict(out_indices=(1,)),
    GABViT=dict(out_indices=(1, 2)),
    VARS=dict(arch=CASES['VARS'].arch | dict(block='deit'), attention='vars_sd', out_indices=(1,), num_steps=2),
)
BACKBONES = {name: dict(arch=CASES[name].arch) | options for name, options in OPTIONS.items()}

ON_CPU = ('--device', 'cpu')


def build(name: str, **options: object) -> nn.Module:
    return MODELS.build(dict(type=f'bioattn_mm.{name}', **BACKBONES[name] | options))


def write_config(folder: Path, name: str, **options: object) -> Path:
    """The config of a backbone, with more arguments of it, for a dataset in `folder`."""
    preprocessor = dict(type='SegDataPreProcessor', mean=[120, 110, 100], std=[60, 55, 50], bgr_to_rgb=True)
    resize = dict(type='Resize', scale=(256, 64), keep_ratio=True)
    pipeline = [dict(type='LoadImageFromFile'), resize, dict(type='LoadAnnotations'), dict(type='PackSegInputs')]
    place = dict(data_root=str(folder / 'data'), data_prefix=dict(img_path='images'))
    loader = dict(dataset=dict(type='ADE20KDataset', **place, pipeline=pipeline))
    backbone = dict(type=f'bioattn_mm.{name}', **BACKBONES[name] | options)
    model = dict(backbone=backbone, data_preprocessor=dict(preprocessor, size=(64, 64)))
    loaders = dict(val_dataloader=loader, test_dataloader=loader, test_evaluator={})
    config = Config(dict(default_scope='mmseg', model=model, **loaders))
    config.dump(path := folder / f'{name.lower()}.py')
    return path


def save_segmentor(folder: Path, name: str, changes: dict | None = None, **options: object) -> tuple[str, str]:
    """Write config, with changes of it, and checkpoint of a segmentor that slides a window: both files."""
    config = Config.fromfile(path := write_config(folder, name, **options))
    head = dict(type='FCNHead', in_channels=build(name, **options).out_channels[-1], channels=8, num_convs=1)
    config.model.update(type='EncoderDecoder', decode_head=head | dict(num_classes=150))
    config.model.test_cfg = dict(mode='slide', crop_size=(64, 64), stride=(43, 43))
    config.merge_from_dict(changes or {})
    config.dump(path)
    init_default_scope('mmseg')
    torch.manual_seed(0)
    model = MODELS.build(config.model)
    for parameter in model.parameters():
        # Weights are as large as trained ones, so that attention and predictions are not the same everywhere.
        parameter.data += 0.1 * torch.randn_like(parameter)
    torch.nn.init.normal_(model.decode_head.conv_seg.weight, std=1.0)
    torch.save(dict(state_dict=model.state_dict(), meta={}), path.with_suffix('.pth'))
    return str(path), str(path.with_suffix('.pth'))
