"""Names of this package's models in timm; what timm asks of a model, as its own `tests/test_models.py` asserts it."""

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import timm
import torch
from mmengine.config import Config
from timm.data import resolve_model_data_config
from timm.layers import create_feature_extractor, get_graph_node_names
from timm.models import get_model_args, push_to_hf_hub
from timm.optim import param_groups_layer_decay
from torch import nn

import bioattn_mm
from bioattn_mm.checkpoints.meta_models import on_meta
from bioattn_mm.errors import InputError
from bioattn_mm.systems.timm_models.models import BACKBONES
from bioattn_mm.systems.timm_models.timm_registry import MODELS

from .classifiers import ARCH, NAMES, released_file, small

every_system = pytest.mark.parametrize('name', NAMES)


def test_names_of_every_variant() -> None:
    assert set(timm.list_models(module='timm_registry')) == set(MODELS)
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


def test_what_is_not_decayed_is_not_decayed_in_the_configs(root: Path) -> None:
    for name, config in (
        ('TransNeXt', 'transnext/upernet_tiny_ade20k.py'),
        ('GABSwin', 'gab/upernet_swin_small_ade20k.py'),
        ('GABViT', 'gab/upernet_vit_small_ade20k.py'),
        ('ConViT', 'convit/upernet_tiny_ade20k.py'),
    ):
        keys = Config.fromfile(root / 'configs' / config).optim_wrapper.paramwise_cfg.custom_keys
        free = {key.removeprefix('backbone.') for key, values in keys.items() if values.get('decay_mult') == 0}
        assert set(BACKBONES[name].no_weight_decay) <= free


def test_images_as_the_weights_want_them() -> None:
    cfg = timm.models.get_pretrained_cfg('transnext_base.ft_in1k_384')
    assert (cfg.hf_hub_id, cfg.input_size) == ('DaiShiResearch/transnext-base-384-1k-ft-1k', (3, 384, 384))
    assert (cfg.pool_size, cfg.crop_pct, cfg.crop_mode) == ((12, 12), 1.0, 'squash')
    assert timm.models.get_pretrained_cfg('gab_vit_small').mean == (0.5, 0.5, 0.5)


def test_backbones_are_attributes_of_the_package() -> None:
    assert set(BACKBONES) <= set(dir(bioattn_mm))
    with pytest.raises(AttributeError, match="has no attribute 'ResNet'"):
        bioattn_mm.ResNet  # noqa: B018


@every_system
@torch.no_grad()
def test_classifier(name: str) -> None:
    model, x = small(name, num_classes=42).eval(), torch.randn(1, 3, 50, 70)
    logits = model(x)
    assert logits.shape == (1, 42)
    features = model.forward_features(x)
    assert features.shape[1 if features.dim() == 4 else -1] == model.num_features
    torch.testing.assert_close(model.forward_head(features), logits)
    pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (1, model.head_hidden_size)
    torch.testing.assert_close(model.get_classifier()(pooled), logits)
    assert model.get_submodule(model.default_cfg['classifier']) is model.get_classifier()
    model.set_grad_checkpointing()
    assert {module.with_cp for module in model.modules() if hasattr(module, 'with_cp')} == {True}
    torch.testing.assert_close(model(x), logits)
    model.reset_classifier(7)
    assert model(x).shape == (1, 7)
    model.reset_classifier(0)
    assert model.num_classes == 0 and isinstance(model.get_classifier(), nn.Identity)
    torch.testing.assert_close(model(x), pooled)
    model.reset_classifier(0, '')
    torch.testing.assert_close(model(x), features)


@every_system
@torch.no_grad()
def test_maps_are_those_of_the_backbone(name: str) -> None:
    model, image = small(name, features_only=True, out_indices=(0, -1)).eval(), torch.randn(1, 3, 65, 40)
    last = len(model.feature_info) - 1
    backbone = BACKBONES[name](arch=ARCH[name], out_indices=(0, last)).eval()
    backbone.load_state_dict(model.backbone.state_dict())
    maps = model(image)
    torch.testing.assert_close(maps, list(backbone(image)), rtol=0, atol=0)
    assert small(name, features_only=True, out_indices=1).feature_info.out_indices == (last,)
    # transformers sets what is returned when it is asked for hidden states, and sets it back.
    layers = model.return_layers
    model.return_layers = [info['module'] for info in model.feature_info.info]
    hidden_states = model(image)
    assert len(hidden_states) == last + 1
    model.return_layers = layers
    for others in ([hidden_states[0], hidden_states[-1]], model(image)):
        torch.testing.assert_close(others, maps, rtol=0, atol=0)


@every_system
@torch.no_grad()
def test_forward_intermediates(name: str) -> None:
    model, x = small(name).eval(), torch.randn(2, 3, 65, 40)
    features, maps = model.forward_intermediates(x)
    torch.testing.assert_close(features, model.forward_features(x), rtol=0, atol=0)
    for map_, info in zip(maps, model.feature_info, strict=True):
        stride = info['reduction']
        assert map_.shape == (2, info['num_chs'], -(-65 // stride), -(-40 // stride))
    assert len(model.forward_intermediates(x, 2)[1]) == 2
    calls = []
    for index, stage in enumerate(model.backbone.block_modules()):
        stage.register_forward_hook(lambda *_, index=index: calls.append(index))
    (chosen,) = model.forward_intermediates(x, (0,), intermediates_only=True)
    torch.testing.assert_close(chosen, maps[0])
    of_first_stage = model.backbone.stages[0].blocks if name in ('TransNeXt', 'GABSwin') else [0]
    assert calls == list(range(len(of_first_stage)))
    for options, message in (
        (dict(output_fmt='NLC'), "must be 'NCHW', got 'NLC'"),
        ({}, r'an input of \(B, 3, H, W\)'),
    ):
        with pytest.raises(InputError, match=message):
            model.forward_intermediates(x[..., :20, :], **options)


@every_system
def test_traced_by_fx(name: str) -> None:
    """The graph holds for other sizes than that of any image before, and has the gradients of the model."""
    model = small(name, num_classes=10).double().eval()
    _, nodes = get_graph_node_names(model)
    traced = create_feature_extractor(model, {nodes[-1]: 'logits'}).eval()
    for size in ((50, 70), (65, 40)):
        x = torch.randn(1, 3, *size, dtype=torch.float64)
        with torch.no_grad():
            torch.testing.assert_close(traced(x)['logits'], model(x), rtol=0, atol=0)
    gradients, x = [], torch.randn(2, 3, 64, 64, dtype=torch.float64)
    for each in (model.train(), traced.train()):
        torch.manual_seed(0)  # of the dropout in timm's position MLP, which GABViT has
        output = each(x) if each is model else each(x)['logits']
        parameters = dict(each.named_parameters())
        gradients.append(dict(zip(parameters, torch.autograd.grad(output.square().sum(), list(parameters.values())))))
    torch.testing.assert_close(gradients[1], gradients[0])


@every_system
def test_layer_decay(name: str) -> None:
    model = small(name, num_classes=10)
    groups = param_groups_layer_decay(model, 0.05, model.no_weight_decay(), layer_decay=0.5)
    settings = {id(p): (group['lr_scale'], group['weight_decay']) for group in groups for p in group['params']}
    for parameter, value in model.named_parameters():
        depth, depths = model.backbone.get_layer_depth(parameter, 'backbone.')
        scale, decay = settings[id(value)]
        words = parameter.split('.')
        if parameter.startswith(('backbone.norm', 'backbone.fc_norm', 'head')):
            assert depth == depths - 1
        elif 'stages' not in words:  # RVT pools before its block 10
            assert depth == (int(words[2]) + 1 if 'blocks' in words else 11 if 'pool' in words else 0)
        assert scale == 0.5 ** (depths - 1 - depth)
        kept = value.ndim <= 1 or any(part in parameter for part in model.backbone.no_weight_decay)
        assert decay == (0 if kept else 0.05)


@pytest.mark.parametrize('options', [dict(num_classes=10), dict(num_classes=0), dict(features_only=True)], ids=str)
def test_pretrained_weights(options: dict, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As with `pretrained=True` alone, from a file instead of from the hub, for another head and grey images."""
    weights = released_file(tmp_path / 'released.pth', 'transnext_micro')
    options = options | dict(pretrained_cfg_overlay=dict(file=str(tmp_path / 'released.pth')), in_chans=1)
    model = timm.create_model('transnext_micro', pretrained=True, **options)
    own = model.backbone.state_dict()
    expected = weights['patch_embed1.proj.weight'].sum(1, keepdim=True)
    torch.testing.assert_close(own['stages.0.patch_embed.proj.weight'], expected)
    torch.testing.assert_close(own['stages.3.norm.weight'], weights['norm4.weight'], rtol=0, atol=0)
    if options.get('num_classes'):
        assert model.head.fc.weight.shape == (10, 384)
    assert 'channel' not in caplog.text


@every_system
@pytest.mark.parametrize('channels', [1, 4])
@torch.no_grad()
def test_other_numbers_of_channels(name: str, channels: int, tmp_path: Path) -> None:
    """One channel's weights are the sum: a grey image has the logits that it has as RGB. Four are scaled."""

    def taken(in_chans: int, file: str) -> nn.Module:
        return small(name, num_classes=10, in_chans=in_chans, checkpoint_path=str(tmp_path / file)).eval()

    torch.save(small(name, num_classes=10).state_dict(), tmp_path / 'rgb.pth')
    rgb, model = taken(3, 'rgb.pth'), taken(channels, 'rgb.pth')
    assert model.get_submodule(model.pretrained_cfg['first_conv']).in_channels == channels == model.in_chans
    if channels == 1:
        grey = torch.randn(1, 1, 50, 70)
        torch.testing.assert_close(model(grey), rgb(grey.expand(-1, 3, -1, -1)))
    else:
        weight, three = (m.get_parameter(m.pretrained_cfg['first_conv'] + '.weight') for m in (model, rgb))
        torch.testing.assert_close(weight, torch.cat((three, three[:, :1]), 1) * 0.75)
    torch.save(model.state_dict(), tmp_path / 'own.pth')
    taken(channels, 'own.pth')
    with pytest.raises(InputError, match=rf'for images of {channels} channels and the model for 5: weights of 3'):
        taken(5, 'own.pth')


@torch.no_grad()
def test_another_image_size() -> None:
    """The position bias is resized from it; what timm writes of the model says so."""
    x = torch.randn(1, 3, 96, 64)
    logits = {}
    for size in (None, (96, 64)):
        torch.manual_seed(0)
        model = small('TransNeXt', num_classes=10, bias_mode='interpolate', img_size=size or 224).eval()
        if size is None:
            before = model(x)
            model.set_input_size((96, 64))
        logits[size] = model(x)
        assert get_model_args(model)['img_size'] == (96, 64)
    assert not torch.allclose(before, logits[None])
    torch.testing.assert_close(logits[None], logits[96, 64])
    plain = small('ConViT', num_classes=10)
    plain.set_input_size(320)  # nothing to do
    assert 'img_size' not in get_model_args(plain)


@pytest.mark.parametrize('name', ['TransNeXt', 'VARS'])
def test_through_the_hub(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = tmp_path / 'hub'
    api = Mock()
    api.create_repo.return_value.repo_id, api.file_exists.return_value = 'me/mine', False
    api.upload_folder = lambda folder_path, **_: shutil.copytree(folder_path, hub)
    monkeypatch.setattr('timm.models._hub.HfApi', lambda **_: api)
    monkeypatch.setattr('timm.models._hub.hf_hub_download', lambda repo_id, filename, **_: str(hub / filename))
    model = small(name, num_classes=10, in_chans=4).eval()
    push_to_hf_hub(model, 'me/mine')
    x = torch.randn(1, 4, 50, 70)
    for source in ('hf-hub:me/mine', f'local-dir:{hub}'):
        again = timm.create_model(source, pretrained=True).eval()
        torch.testing.assert_close(again(x), model(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(global_pool='max'), "global_pool must be 'avg' or '', got 'max'"),
        (dict(global_pool=''), "global_pool='' needs num_classes=0, got 1000"),
        (dict(features_only=True, out_indices=(-5,)), r'out_indices must be stages 0 to 3, got \(-5,\)'),
        (dict(features_only=True, feature_cls='dict'), "feature_cls of transnext_micro must be 'list', got 'dict'"),
    ],
)
def test_arguments_that_are_wrong(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        small('TransNeXt', **options)
