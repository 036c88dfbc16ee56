"""Classifiers with the authors' files, and small ones, that several files of tests take."""

from pathlib import Path

import timm
import torch
from mmengine.registry import MODELS
from mmpretrain.models import ImageClassifier
from torch import Tensor, nn

from tests import parity

from ..common.small_backbones import ARCH

# A name of each class.
NAMES = {
    'TransNeXt': 'transnext_micro',
    'ConViT': 'convit_tiny_bioattn',
    'PerViT': 'pervit_tiny',
    'GABViT': 'gab_vit_small',
    'GABSwin': 'gab_swin_tiny',
    'VARS': 'vars_s_rvt_tiny',
}


def classifier(backbone: dict, channels: int, classes: int = 1000, **options) -> ImageClassifier:
    """mmpretrain's classifier with one of our backbones; maps are pooled by a neck."""
    neck = None if backbone.get('out_type', 'featmap') != 'featmap' else dict(type='GlobalAveragePooling')
    backbone = {**backbone, 'type': f'bioattn_mm.{backbone["type"]}', 'out_indices': (-1,)}
    head = dict(type='LinearClsHead', num_classes=classes, in_channels=channels)
    return MODELS.build(dict(type='mmpretrain.ImageClassifier', backbone=backbone, neck=neck, head=head, **options))


def released_file(path: Path, manifest: str, classes: int = 1000) -> dict[str, Tensor]:
    """Write a file laid out like the authors' release; return its weights."""
    state_dict = parity.released_state_dict(manifest)
    last_norm = 'norm4.weight' if manifest.startswith('transnext') else 'norm.weight'
    channels = state_dict[last_norm].numel()
    for name, shape in {'head.weight': [classes, channels], 'head.bias': [classes]}.items():
        state_dict[name] = parity.fill_value(name, shape)
    torch.save({'model': state_dict, 'epoch': 299}, path)
    return state_dict


def small(name: str, **options) -> nn.Module:
    pad = dict(pad_small_map=True) if name == 'GABSwin' else {}
    return timm.create_model(NAMES[name], arch=ARCH[name], **pad, **options)
