"""The backbones in timm: names, classifiers of the authors' files, maps, and what timm's tools ask of a model."""

import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope
from timm.data import resolve_model_data_config
from timm.optim import param_groups_layer_decay

import bioattn_mm
from bioattn_mm.errors import InputError
from bioattn_mm.systems.timm_models.models import BACKBONES
from bioattn_mm.systems.timm_models.timm_registry import MODELS, OF_CLASS

from .classifiers import ARCH, NAMES, released_file, small, small_classifier

every_system = pytest.mark.parametrize('name', NAMES)


def test_names_of_every_variant() -> None:
    assert set(timm.list_models(module='timm_registry')) == set(MODELS)
    variants = ('base', 'micro', 'micro_aaaa', 'small', 'tiny')
    assert timm.list_models('transnext*') == [f'transnext_{variant}' for variant in variants]
    for name, cls in BACKBONES.items():
        assert {MODELS[n][1]['arch'] for n in MODELS if MODELS[n][0] == name} == set(cls.arch_settings)
    assert set(timm.list_pretrained('transnext_base*')) == {'transnext_base.in1k', 'transnext_base.ft_in1k_384'}


@pytest.mark.slow
def test_they_are_registered_where_timm_comes_first() -> None:
    """`tests/systems/common/test_registry.py` has the other order."""
    code = "import timm, bioattn_mm; assert timm.is_model('transnext_tiny')"
    subprocess.run([sys.executable, '-c', code], check=True)


def test_models_of_timm_stay() -> None:
    assert timm.models.model_entrypoint('convit_tiny').__module__ == 'timm.models.convit'


@every_system
@torch.no_grad()
def test_checkpoints_and_logits_are_those_of_an_image_classifier(name: str, tmp_path: Path) -> None:
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        host = small_classifier(name).eval()
    torch.save(dict(state_dict=host.state_dict()), tmp_path / 'epoch_300.pth')
    model = small(name, num_classes=10, checkpoint_path=str(tmp_path / 'epoch_300.pth')).eval()
    image = torch.randn(2, 3, 64, 96)
    torch.testing.assert_close(model(image), host(image), rtol=0, atol=1e-6)
    host.load_state_dict(model.state_dict())  # and the other way round

    features = small(name, features_only=True, out_indices=2, checkpoint_path=str(tmp_path / 'epoch_300.pth'))
    for parameter, value in features.backbone.state_dict().items():
        if parameter in host.backbone.state_dict():
            torch.testing.assert_close(value, host.backbone.state_dict()[parameter], rtol=0, atol=0)


@every_system
@torch.no_grad()
def test_maps_are_those_of_the_backbone(name: str) -> None:
    model = small(name, features_only=True, out_indices=(0, -1)).eval()
    last = len(model.feature_info) - 1
    backbone = BACKBONES[name](arch=ARCH[name], out_indices=(0, last)).eval()
    backbone.load_state_dict(model.backbone.state_dict())
    image = torch.randn(1, 3, 65, 40)
    maps = model(image)
    for feature, expected in zip(maps, backbone(image), strict=True):
        torch.testing.assert_close(feature, expected, rtol=0, atol=0)
    assert [feature.shape[1] for feature in maps] == model.feature_info.channels()
    for feature, stride in zip(maps, model.feature_info.reduction(), strict=True):
        assert feature.shape[2:] == (-(-65 // stride), -(-40 // stride))
    assert small(name, features_only=True, out_indices=1).feature_info.out_indices == (last,)
    # transformers sets what is returned when it is asked for hidden states, and sets it back.
    layers = model.return_layers
    model.return_layers = [info['module'] for info in model.feature_info.info]
    hidden_states = model(image)
    assert len(hidden_states) == last + 1
    model.return_layers = layers
    for feature, hidden_state, again in zip(maps, (hidden_states[0], hidden_states[-1]), model(image), strict=True):
        assert torch.equal(hidden_state, feature) and torch.equal(again, feature)
    # Without the later stages, the modules have the same names.
    early = small(name, features_only=True, out_indices=(0,))
    assert early.feature_info.module_name() == model.feature_info.module_name()[:1]
    assert early.feature_info.module_name()[0] in dict(early.named_modules())


@every_system
def test_layer_decay(name: str) -> None:
    model = small(name, num_classes=10)
    groups = param_groups_layer_decay(model, 0.05, model.no_weight_decay(), layer_decay=0.5)
    settings = {id(p): (group['lr_scale'], group['weight_decay']) for group in groups for p in group['params']}
    for parameter, value in model.named_parameters():
        depth, depths = model.backbone.get_layer_depth(parameter, 'backbone.')
        scale, decay = settings[id(value)]
        assert scale == 0.5 ** (depths - 1 - depth)
        kept = value.ndim <= 1 or any(part in parameter for part in model.backbone.no_weight_decay)
        assert decay == (0 if kept else 0.05)


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


@pytest.mark.parametrize(
    'options',
    [dict(num_classes=10), dict(num_classes=5, in_chans=1), dict(num_classes=0, in_chans=1)]
    + [dict(features_only=True, in_chans=channels) for channels in (1, 3)],
    ids=str,
)
def test_pretrained_weights(options: dict, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As with `pretrained=True` alone, from a file instead of from the hub, for other heads and channels."""
    weights = released_file(tmp_path / 'released.pth', 'transnext_micro')
    source = dict(file=str(tmp_path / 'released.pth'))
    model = timm.create_model('transnext_micro', pretrained=True, pretrained_cfg_overlay=source, **options)
    first, norm = (model.backbone.stages[0].patch_embed.proj.weight, model.backbone.stages[3].norm.weight)
    expected = weights['patch_embed1.proj.weight']
    if options.get('in_chans') == 1:
        expected = expected.sum(1, keepdim=True)
    torch.testing.assert_close(first.detach(), expected)
    torch.testing.assert_close(norm.detach(), weights['norm4.weight'], rtol=0, atol=0)
    if options.get('num_classes'):
        assert model.head.fc.weight.shape == (options['num_classes'], 384)
    assert 'channel' not in caplog.text


def test_images_as_the_weights_want_them() -> None:
    cfg = {name: timm.models.get_pretrained_cfg(name) for name in ('transnext_base.ft_in1k_384', 'gab_vit_small')}
    assert cfg['transnext_base.ft_in1k_384'].hf_hub_id == 'DaiShiResearch/transnext-base-384-1k-ft-1k'
    data = resolve_model_data_config(small('TransNeXt'))
    assert data['input_size'] == (3, 224, 224)
    assert data['mean'] == (0.485, 0.456, 0.406)
    assert cfg['gab_vit_small'].mean == (0.5, 0.5, 0.5)
    assert set(OF_CLASS) == set(BACKBONES)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(global_pool='max'), "global_pool must be 'avg' or '', got 'max'"),
        (dict(global_pool=''), "global_pool='' needs num_classes=0, got 1000"),
        (dict(features_only=True, out_indices=(4,)), r'out_indices must be stages 0 to 3, got \(4,\)'),
        (dict(features_only=True, out_indices=(-5,)), r'out_indices must be stages 0 to 3, got \(-5,\)'),
    ],
)
def test_arguments_that_are_wrong(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        small('TransNeXt', **options)


def test_backbones_are_attributes_of_the_package() -> None:
    assert bioattn_mm.TransNeXt is BACKBONES['TransNeXt']
    assert set(BACKBONES) <= set(dir(bioattn_mm))
    with pytest.raises(AttributeError, match="has no attribute 'ResNet'"):
        bioattn_mm.ResNet  # noqa: B018
