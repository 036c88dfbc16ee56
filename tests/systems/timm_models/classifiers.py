"""Classifiers with the authors' files, and small ones, that several files of tests take."""

from pathlib import Path

import timm
import torch
from mmengine.registry import MODELS
from mmpretrain.models import ImageClassifier
from torch import Tensor, nn

from tests import parity

VARS_D = dict(type='VARS', arch='rvt-tiny', attention='vars_d')
# Of each vector: the manifest of its state dict, the backbone that takes it, and timm's model and its arguments.
RELEASED = {
    'logits_transnext_micro_224x224': (
        'transnext_micro',
        dict(type='TransNeXt', arch='micro', out_indices=(3,)),
        dict(model_name='transnext_micro'),
    ),
    'logits_transnext_micro_AAAA_256x256': (
        'transnext_micro_AAAA',
        dict(type='TransNeXt', arch='micro-aaaa', out_indices=(3,)),
        dict(model_name='transnext_micro_aaaa'),
    ),
    'logits_convit_tiny_224x224': (
        'convit_tiny',
        dict(type='ConViT', arch='tiny', out_indices=(11,), out_type='cls_token'),
        dict(model_name='convit_tiny_bioattn'),
    ),
    'logits_pervit_tiny_224x224': (
        'pervit_tiny',
        dict(type='PerViT', arch='tiny', out_indices=(11,)),
        dict(model_name='pervit_tiny'),
    ),
    'logits_vars_rvt_tiny_self-att_224x224': (
        'vars_rvt_tiny_self-att',
        dict(type='VARS', arch='rvt-tiny', attention='softmax', out_indices=(11,), out_type='avg_featmap'),
        dict(model_name='vars_s_rvt_tiny', attention='softmax'),
    ),
    'logits_vars_rvt_tiny_vars_d_224x224': (
        'vars_rvt_tiny_vars_d',
        dict(VARS_D, num_steps=5, out_indices=(11,), out_type='avg_featmap'),
        dict(model_name='vars_d_rvt_tiny'),
    ),
}
# Small backbones as a classifier has them, and their channels.
SMALL = dict(
    TransNeXt=(
        dict(arch=dict(embed_dims=(8, 16, 24, 32), num_heads=(1, 2, 3, 4), depths=(1, 1, 1, 1)), out_indices=(3,)),
        32,
    ),
    ConViT=(
        dict(arch=dict(embed_dims=8, num_layers=12, num_heads=2), out_indices=(11,), out_type='cls_token'),
        8,
    ),
    PerViT=(
        dict(
            arch=dict(embed_dims=(4, 8, 8, 12), depths=(2, 2, 6, 2), stem_channels=(4, 4, 4), num_heads=2),
            out_indices=(11,),
        ),
        12,
    ),
    GABViT=(
        dict(arch=dict(embed_dims=16, num_layers=2, num_heads=2), out_indices=(1,), out_type='avg_featmap'),
        16,
    ),
    GABSwin=(
        dict(arch=dict(embed_dims=16, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2)), out_indices=(3,)),
        128,
    ),
    VARS=(
        dict(
            arch=dict(block='rvt', embed_dims=[8, 16], depths=[1, 1], num_heads=[2, 2], feature_ratio=1),
            out_indices=(1,),
            out_type='avg_featmap',
        ),
        16,
    ),
)


def classifier(backbone: dict, channels: int, classes: int = 1000, **options) -> ImageClassifier:
    """mmpretrain's classifier with one of our backbones; maps are pooled by a neck."""
    neck = None if backbone.get('out_type', 'featmap') != 'featmap' else dict(type='GlobalAveragePooling')
    return MODELS.build(
        dict(
            type='mmpretrain.ImageClassifier',
            backbone={**backbone, 'type': f'bioattn_mm.{backbone["type"]}'},
            neck=neck,
            head=dict(type='LinearClsHead', num_classes=classes, in_channels=channels),
            **options,
        )
    )


def released_file(path: Path, manifest: str, classes: int = 1000) -> dict[str, Tensor]:
    """Write a file laid out like the authors' release; return its weights."""
    state_dict = parity.released_state_dict(manifest)
    last_norm = 'norm4.weight' if manifest.startswith('transnext') else 'norm.weight'
    channels = state_dict[last_norm].numel()
    for name, shape in {'head.weight': [classes, channels], 'head.bias': [classes]}.items():
        state_dict[name] = parity.fill_value(name, shape)
    torch.save({'model': state_dict, 'epoch': 299}, path)
    return state_dict


# A name of each class.
NAMES = {
    'TransNeXt': 'transnext_micro',
    'ConViT': 'convit_tiny_bioattn',
    'PerViT': 'pervit_tiny',
    'GABViT': 'gab_vit_small',
    'GABSwin': 'gab_swin_tiny',
    'VARS': 'vars_s_rvt_tiny',
}


def small(name: str, **options) -> nn.Module:
    """A small model of a class."""
    pad = dict(pad_small_map=True) if name == 'GABSwin' else {}
    return timm.create_model(NAMES[name], arch=SMALL[name][0]['arch'], **pad, **options)
