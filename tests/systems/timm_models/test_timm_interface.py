"""What timm asks of a model, and its tools and other libraries call: as `tests/test_models.py` of timm asserts it.

Each name is built as it is; what computes has few blocks and channels in the place of its own. timm's rules about
TorchScript, pruning and its own classes for maps are left out.
"""

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
from timm.data import create_transform, resolve_model_data_config
from timm.layers import create_feature_extractor, get_graph_node_names
from timm.models import FeatureInfo, get_model_args, get_model_input_config, load_model_config_from_hf, push_to_hf_hub
from torch import Tensor, nn

from bioattn_mm.checkpoints.meta_models import on_meta
from bioattn_mm.errors import InputError
from bioattn_mm.systems.timm_models.models import BACKBONES
from bioattn_mm.systems.timm_models.timm_registry import MODELS

from .classifiers import ARCH, NAMES, small

every_system = pytest.mark.parametrize('name', NAMES)
every_name = pytest.mark.parametrize('name', MODELS)
PYRAMIDS = ('TransNeXt', 'GABSwin')


def slim(name: str, **options: object) -> nn.Module:
    """The model of a name with its heads, each of 8 channels or a few more, and three to five blocks."""
    backbone, settings = MODELS[name]
    arch = dict(BACKBONES[backbone].arch_settings[settings['arch']])
    heads = arch['num_heads']
    if backbone == 'PerViT':
        arch['embed_dims'] = tuple(heads * channels for channels in (8, 9, 10, 11))
    elif backbone == 'GABSwin':
        arch['embed_dims'] = 8 * heads[0]
    else:
        arch['embed_dims'] = 8 * heads if isinstance(heads, int) else tuple(8 * number for number in heads)
    if 'depths' in arch:
        arch['depths'] = (2, *[1] * (len(arch['depths']) - 1)) if len(arch['depths']) > 1 else (3,)
    else:
        arch['num_layers'] = 3
    if backbone == 'ConViT':
        options['local_up_to_layer'] = 2
    return timm.create_model(name, arch=arch, **options)


def images(name: str, batch: int = 1, channels: int = 3) -> Tensor:
    """The smallest square that a model takes, of 48 pixels on."""
    lowest = timm.models.get_pretrained_cfg(name).min_input_size or (3, 48, 48)
    return torch.randn(batch, channels, *lowest[1:])


@every_name
def test_configuration_of_every_name(name: str) -> None:
    with on_meta():
        model = timm.create_model(name, num_classes=42, in_chans=5)
    state_dict, cfg = model.state_dict(), model.default_cfg
    assert state_dict[cfg['first_conv'] + '.weight'].shape[1] == 5
    assert state_dict[cfg['classifier'] + '.weight'].shape == (42, model.num_features)
    assert model.get_classifier().out_features == model.num_classes == 42
    assert model.head_hidden_size == model.num_features == model.feature_info[-1]['num_chs']
    assert {info['module'] for info in model.feature_info} <= {name for name, _ in model.named_modules()}
    # timm wants three levels of all but plain ViTs; RVT has two strides.
    backbone = MODELS[name][0]
    with on_meta():
        indices = timm.create_model(name, features_only=True).backbone.out_indices
    assert len(indices) >= (2 if 'rvt' in name else 3) and max(indices) == len(model.feature_info) - 1
    strides = [info['reduction'] for info in model.feature_info]
    # segmentation-models-pytorch tells pyramids from the rest by their strides.
    assert strides == [4, 8, 16, 32] if backbone in PYRAMIDS else {16} <= set(strides) <= {16, 32}
    data = resolve_model_data_config(model)
    assert cfg['pool_size'] == tuple(length // strides[-1] for length in data['input_size'][1:])
    assert (data['interpolation'], len(data['mean']), len(data['std'])) == ('bicubic', 3, 3)


@every_name
@torch.no_grad()
def test_classifier(name: str) -> None:
    model = slim(name, num_classes=42).eval()
    x = images(name)
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
    torch.testing.assert_close(model(x), logits)
    model.reset_classifier(7)
    assert model(x).shape == (1, 7)
    model.reset_classifier(0)
    assert model.num_classes == 0 and isinstance(model.get_classifier(), nn.Identity)
    torch.testing.assert_close(model(x), pooled)
    model.reset_classifier(0, '')
    torch.testing.assert_close(model(x), features)
    with torch.enable_grad():
        model.train()(torch.cat((x, x))).sum().backward()
    assert model.get_parameter(model.pretrained_cfg['first_conv'] + '.weight').grad is not None


@every_name
@torch.no_grad()
def test_maps_as_feature_info_has_them(name: str) -> None:
    """Of `features_only`, which gives those of `out_indices`, and of a classifier's `forward_intermediates`."""
    x = images(name)
    model, classifier = slim(name, features_only=True, out_indices=(0, 1, 2)).eval(), slim(name).eval()
    features, intermediates = classifier.forward_intermediates(x)
    torch.testing.assert_close(features, classifier.forward_features(x), rtol=0, atol=0)
    for maps, info in ((model(x), model.feature_info), (intermediates, FeatureInfo(classifier.feature_info, 0))):
        for map_, each in zip(maps, info.info, strict=len(maps) > 3):
            length = math.ceil(x.shape[2] / each['reduction'])
            assert map_.shape == (1, each['num_chs'], length, length)


@every_system
@torch.no_grad()
def test_arguments_of_forward_intermediates(name: str) -> None:
    model = small(name).eval()
    x = torch.randn(2, 3, 65, 40)
    features, maps = model.forward_intermediates(x)
    assert len(model.forward_intermediates(x, 2)[1]) == 2
    calls = []
    for index, stage in enumerate(model.backbone.block_modules()):
        stage.register_forward_hook(lambda *_, index=index: calls.append(index))
    (chosen,) = model.forward_intermediates(x, (0,), intermediates_only=True)
    torch.testing.assert_close(chosen, maps[0])
    assert calls == list(range(len(model.backbone.stages[0].blocks) if name in PYRAMIDS else 1))
    with pytest.raises(InputError, match="output_fmt must be 'NCHW', got 'NLC'"):
        model.forward_intermediates(x, output_fmt='NLC')
    with pytest.raises(InputError, match=r'expected an input of \(B, 3, H, W\)'):
        model.forward_intermediates(torch.randn(1, 3, 20, 20))


@every_name
def test_traced_by_fx(name: str) -> None:
    """The graph holds for other sizes than that of any image before, and has the gradients of the model."""
    pad = dict(pad_small_map=True) if MODELS[name][0] == 'GABSwin' else {}
    model = slim(name, num_classes=10, **pad).double().eval()
    _, nodes = get_graph_node_names(model)
    traced = create_feature_extractor(model, {nodes[-1]: 'logits'}).eval()
    for size in ((50, 70), (65, 40)):
        x = torch.randn(1, 3, *size, dtype=torch.float64)
        with torch.no_grad():
            torch.testing.assert_close(traced(x)['logits'], model(x), rtol=0, atol=0)
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    torch.manual_seed(0)  # of the dropout in timm's position MLP, which GABViT has
    (model.train()(x) ** 2).sum().backward()
    expected = {n: parameter.grad.clone() for n, parameter in model.named_parameters()}
    model.zero_grad()
    torch.manual_seed(0)
    (traced.train()(x)['logits'] ** 2).sum().backward()
    torch.testing.assert_close({n: parameter.grad for n, parameter in traced.named_parameters()}, expected)


@every_system
@pytest.mark.parametrize('channels', [1, 4])
@torch.no_grad()
def test_other_numbers_of_channels(name: str, channels: int, tmp_path: Path) -> None:
    """One channel's weights are the sum: a grey image has the logits that it has as RGB. Four are scaled."""
    torch.save(small(name, num_classes=10).state_dict(), tmp_path / 'rgb.pth')
    rgb = small(name, num_classes=10, checkpoint_path=str(tmp_path / 'rgb.pth')).eval()
    model = small(name, num_classes=10, in_chans=channels, checkpoint_path=str(tmp_path / 'rgb.pth')).eval()
    assert model.get_submodule(model.pretrained_cfg['first_conv']).in_channels == channels == model.in_chans
    grey = torch.randn(1, 1, 50, 70)
    if channels == 1:
        torch.testing.assert_close(model(grey), rgb(grey.expand(-1, 3, -1, -1)))
    else:
        weight, three = (m.get_parameter(m.pretrained_cfg['first_conv'] + '.weight') for m in (model, rgb))
        torch.testing.assert_close(weight, torch.cat((three, three[:, :1]), 1) * 0.75)
    assert get_model_input_config(model)['input_size'] == (channels, 224, 224)
    torch.save(model.state_dict(), tmp_path / 'own.pth')
    small(name, num_classes=10, in_chans=channels, checkpoint_path=str(tmp_path / 'own.pth'))
    with pytest.raises(InputError, match=rf'for images of {channels} channels and the model for 5: weights of 3'):
        small(name, num_classes=10, in_chans=5, checkpoint_path=str(tmp_path / 'own.pth'))
    with pytest.raises(InputError, match=rf'expected an input of \(B, {channels}, H, W\)'):
        model(torch.randn(1, 3, 64, 64))


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
    assert create_transform(**resolve_model_data_config(plain)).transforms[0].size == 256


@every_system
def test_through_the_hub(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`push_to_hf_hub`, with a folder for the hub, and `create_model` from it: the same logits."""
    hub = tmp_path / 'hub'

    def download(repo_id: str, filename: str, **kwargs: object) -> str:
        assert repo_id == 'me/mine'
        return str(hub / filename)

    api = SimpleNamespace(
        create_repo=lambda repo_id, **kwargs: SimpleNamespace(repo_id=repo_id),
        file_exists=lambda **kwargs: False,
        upload_folder=lambda folder_path, **kwargs: shutil.copytree(folder_path, hub),
    )
    monkeypatch.setattr('timm.models._hub.HfApi', lambda **kwargs: api)
    monkeypatch.setattr('timm.models._hub.hf_hub_download', download)
    model = small(name, num_classes=10, in_chans=4).eval()
    push_to_hf_hub(model, 'me/mine', model_config=dict(label_names=[f'part {i}' for i in range(10)]))
    assert {path.name for path in hub.iterdir()} == {
        'README.md', 'config.json', 'model.safetensors', 'pytorch_model.bin'
    }  # fmt: skip
    config, architecture, arguments = load_model_config_from_hf('me/mine')
    assert architecture == NAMES[name]
    assert config['num_classes'] == 10 and config['label_names'][3] == 'part 3'
    assert tuple(config['input_size']) == (4, 224, 224)
    assert json.dumps(arguments['arch']) == json.dumps(ARCH[name])
    x = torch.randn(1, 4, 50, 70)
    for source in ('hf-hub:me/mine', f'local-dir:{hub}'):
        again = timm.create_model(source, pretrained=True).eval()
        torch.testing.assert_close(again(x), model(x), rtol=0, atol=0)


def test_feature_classes_of_other_models() -> None:
    with pytest.raises(InputError, match="feature_cls of transnext_micro must be 'list', got 'dict'"):
        timm.create_model('transnext_micro', features_only=True, feature_cls='dict')
