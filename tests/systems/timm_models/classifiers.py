"""Classifiers with the authors' files, and small ones, that several files of tests take."""

from pathlib import Path

import timm
import torch
from mmengine.registry import MODELS
from mmpretrain.models import ImageClassifier
from torch import Tensor, nn

from tests import parity

from ..common.small_backbones import ARCH

RVT_TINY = dict(type='VARS', arch='rvt-tiny', out_type='avg_featmap')
# Of each vector: the manifest of its state dict, the backbone that takes it, and timm's model and its arguments.
RELEASED = {
    f'logits_{manifest}_{size}x{size}': (manifest, backbone, dict(model_name=name, **of_timm))
    for manifest, size, backbone, name, of_timm in (
        ('transnext_micro', 224, dict(type='TransNeXt', arch='micro'), 'transnext_micro', {}),
        ('transnext_micro_AAAA', 256, dict(type='TransNeXt', arch='micro-aaaa'), 'transnext_micro_aaaa', {}),
        ('convit_tiny', 224, dict(type='ConViT', arch='tiny', out_type='cls_token'), 'convit_tiny_bioattn', {}),
        ('pervit_tiny', 224, dict(type='PerViT', arch='tiny'), 'pervit_tiny', {}),
        *(
            (f'vars_rvt_tiny_{manifest}', 224, RVT_TINY | of_mmpretrain, name, of_timm)
            for manifest, of_mmpretrain, name, of_timm in (
                ('self-att', dict(attention='softmax'), 'vars_s_rvt_tiny', dict(attention='softmax')),
                ('vars_d', dict(attention='vars_d', num_steps=5), 'vars_d_rvt_tiny', {}),
            )
        ),
    )
}
# These classifiers take something else of a backbone than a map.
OUT_TYPES = dict(ConViT='cls_token', GABViT='avg_featmap', VARS='avg_featmap')
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
    return MODELS.build(
        dict(
            type='mmpretrain.ImageClassifier',
            backbone={**backbone, 'type': f'bioattn_mm.{backbone["type"]}', 'out_indices': (-1,)},
            neck=neck,
            head=dict(type='LinearClsHead', num_classes=classes, in_channels=channels),
            **options,
        )
    )


def small_classifier(name: str) -> ImageClassifier:
    """That of a small backbone, with 10 classes."""
    out_type = {'out_type': OUT_TYPES[name]} if name in OUT_TYPES else {}
    return classifier(dict(type=name, arch=ARCH[name], **out_type), small(name).num_features, 10)


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
    """A small model of a class."""
    pad = dict(pad_small_map=True) if name == 'GABSwin' else {}
    return timm.create_model(NAMES[name], arch=ARCH[name], **pad, **options)
