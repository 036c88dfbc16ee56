"""The names that timm has of this package's models, and what it keeps of each."""

from pathlib import Path

import pytest
import timm
import torch
from mmengine.config import Config
from timm.data import resolve_model_data_config

import bioattn_mm
from bioattn_mm.checkpoints.meta_models import on_meta
from bioattn_mm.systems.timm_models.models import BACKBONES
from bioattn_mm.systems.timm_models.timm_registry import MODELS, OF_CLASS

from .classifiers import small


def test_names_of_every_variant() -> None:
    assert set(timm.list_models(module='timm_registry')) == set(MODELS)
    variants = ('base', 'micro', 'micro_aaaa', 'small', 'tiny')
    assert timm.list_models('transnext*') == [f'transnext_{variant}' for variant in variants]
    for name, cls in BACKBONES.items():
        assert {MODELS[n][1]['arch'] for n in MODELS if MODELS[n][0] == name} == set(cls.arch_settings)
    assert set(timm.list_pretrained('transnext_base*')) == {'transnext_base.in1k', 'transnext_base.ft_in1k_384'}
    # Models of timm stay.
    assert timm.models.model_entrypoint('convit_tiny').__module__ == 'timm.models.convit'


@pytest.mark.parametrize('name', MODELS)
def test_configuration_of_every_name(name: str) -> None:
    with on_meta():
        model = timm.create_model(name, num_classes=42, in_chans=5)
        indices = timm.create_model(name, features_only=True).backbone.out_indices
        lowest = model.default_cfg.get('min_input_size') or (3, 33, 40)
        assert model(torch.empty(2, 5, *lowest[1:])).shape == (2, 42)
    state_dict, cfg = model.state_dict(), model.default_cfg
    assert state_dict[cfg['first_conv'] + '.weight'].shape[1] == 5
    assert state_dict[cfg['classifier'] + '.weight'].shape == (42, model.num_features)
    assert model.get_classifier().out_features == model.num_classes == 42
    assert model.head_hidden_size == model.num_features == model.feature_info[-1]['num_chs']
    assert {info['module'] for info in model.feature_info} <= {name for name, _ in model.named_modules()}
    # timm wants three levels of all but plain ViTs; RVT has two strides.
    assert len(indices) >= (2 if 'rvt' in name else 3) and max(indices) == len(model.feature_info) - 1
    strides = [info['reduction'] for info in model.feature_info]
    # segmentation-models-pytorch tells pyramids from the rest by their strides.
    is_pyramid = MODELS[name][0] in ('TransNeXt', 'GABSwin')
    assert strides == [4, 8, 16, 32] if is_pyramid else {16} <= set(strides) <= {16, 32}
    data = resolve_model_data_config(model)
    assert cfg['pool_size'] == tuple(length // strides[-1] for length in data['input_size'][1:])
    assert (data['interpolation'], len(data['mean']), len(data['std'])) == ('bicubic', 3, 3)


@pytest.mark.parametrize(
    ('name', 'config'),
    [
        ('TransNeXt', 'transnext/upernet_tiny_ade20k.py'),
        ('GABSwin', 'gab/upernet_swin_small_ade20k.py'),
        ('GABViT', 'gab/upernet_vit_small_ade20k.py'),
        ('ConViT', 'convit/upernet_tiny_ade20k.py'),
    ],
)
def test_what_is_not_decayed_is_not_decayed_in_the_configs(name: str, config: str, root: Path) -> None:
    keys = Config.fromfile(root / 'configs' / config).optim_wrapper.paramwise_cfg.custom_keys
    free = {key.removeprefix('backbone.') for key, values in keys.items() if values.get('decay_mult') == 0}
    assert set(BACKBONES[name].no_weight_decay) <= free


def test_images_as_the_weights_want_them() -> None:
    cfg = {name: timm.models.get_pretrained_cfg(name) for name in ('transnext_base.ft_in1k_384', 'gab_vit_small')}
    of_384 = cfg['transnext_base.ft_in1k_384']
    assert of_384.hf_hub_id == 'DaiShiResearch/transnext-base-384-1k-ft-1k'
    assert (of_384.input_size, of_384.pool_size) == ((3, 384, 384), (12, 12))
    assert (of_384.crop_pct, of_384.crop_mode) == (1.0, 'squash')
    data = resolve_model_data_config(small('TransNeXt'))
    assert (data['input_size'], data['mean']) == ((3, 224, 224), (0.485, 0.456, 0.406))
    assert cfg['gab_vit_small'].mean == (0.5, 0.5, 0.5)
    assert set(OF_CLASS) == set(BACKBONES)


def test_backbones_are_attributes_of_the_package() -> None:
    assert bioattn_mm.TransNeXt is BACKBONES['TransNeXt']
    assert set(BACKBONES) <= set(dir(bioattn_mm))
    with pytest.raises(AttributeError, match="has no attribute 'ResNet'"):
        bioattn_mm.ResNet  # noqa: B018
