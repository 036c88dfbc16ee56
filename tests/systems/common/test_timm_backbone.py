"""`TimmBackbone`: maps of timm's models of every kind at any size, their weights, depths and frozen stages."""

from pathlib import Path
from unittest.mock import Mock

import pytest
import timm
import torch
from torch import nn

from bioattn_mm.errors import InputError
from bioattn_mm.registry import MODELS

SWIN = dict(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2))
VIT = dict(embed_dim=32, depth=4, num_heads=2)
# A small model of each kind: with prefix tokens and without, tokens with the channels last, rotary and absolute
# positions, BatchNorm; one without `forward_intermediates`.
KINDS = {
    'vit_tiny_patch16_224': VIT,
    'vit_small_patch14_reg4_dinov2': VIT,
    'vit_small_patch16_dinov3': VIT,
    'vit_base_patch16_siglip_224': VIT,
    'swin_tiny_patch4_window7_224': SWIN,
    'resnet18': {},
    'convnext_atto': {},
    'densenet121': {},
    'transnext_micro': dict(arch=dict(embed_dims=(8, 16, 24, 32), num_heads=(1, 2, 3, 4), depths=(1, 1, 1, 1))),
}


def backbone(name: str, **options) -> nn.Module:
    torch.manual_seed(0)
    return MODELS.build(dict(type='bioattn_mm.TimmBackbone', model_name=name, **KINDS.get(name, {}), **options))


@pytest.mark.parametrize('name', KINDS)
def test_maps_of_any_size(name: str) -> None:
    """Each covers the image, and every parameter that is built is used."""
    model = backbone(name).train()
    assert model.out_strides == ((16,) * 4 if 'vit' in name else (4, 8, 16, 32))
    maps = model(torch.randn(2, 3, 75, 100))
    for map_, channels, stride in zip(maps, model.out_channels, model.out_strides, strict=True):
        assert map_.shape == (2, channels, -(-75 // stride), -(-100 // stride))
    sum(map_.square().sum() for map_ in maps).backward()
    assert [n for n, parameter in model.named_parameters() if parameter.grad is None] == []


@torch.no_grad()
def test_maps_are_those_of_timm() -> None:
    """Of a model built for the image's size, without padding; DINOv2 sees the image resized by 14 / 16."""
    for name, size, seen in (('vit_tiny_patch16_224', 96, 96), ('vit_small_patch14_reg4_dinov2', 96, 84)):
        model = backbone(name, out_indices=(-1, 1)).eval()
        torch.manual_seed(0)
        other = timm.create_model(name, num_classes=0, dynamic_img_size=True, **VIT).eval()
        x = torch.randn(1, 3, size, size)
        resized = nn.functional.interpolate(x, (seen, seen), mode='bilinear', antialias=True)
        expected = other.forward_intermediates(resized, indices=(1, 3), norm=True, intermediates_only=True)
        torch.testing.assert_close(list(model(x)), expected)


@pytest.mark.parametrize(
    ('name', 'channels'),
    [('vit_small_patch14_reg4_dinov2', 3), ('swin_tiny_patch4_window7_224', 1), ('densenet121', 3)],
)
@torch.no_grad()
def test_weights(name: str, channels: int, tmp_path: Path) -> None:
    """Of timm's file, with its position embedding of another size, and of a checkpoint with this backbone."""
    x, maps = torch.randn(1, channels, 64, 96), {}
    torch.manual_seed(1)  # other values than a new model's
    timms = timm.create_model(name, **KINDS[name], **(dict(img_size=518) if 'dinov2' in name else {}))
    torch.save(timms.state_dict(), tmp_path / 'timms.pth')
    for key in ('timms', 'own', 'detector'):
        init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / f'{key}.pth'))
        model = backbone(name, in_channels=channels, init_cfg=init_cfg).eval()
        before = model(x)[-1]
        model.init_weights()
        maps[key] = model(x)[-1]
        assert not torch.allclose(before, maps[key])
        torch.testing.assert_close(maps[key], maps['timms'], rtol=0, atol=0)
        torch.save(model.state_dict(), tmp_path / 'own.pth')
        detector = {f'backbone.{n}': value for n, value in model.state_dict().items()}
        torch.save(dict(state_dict=detector | {'neck.bias': torch.zeros(1)}), tmp_path / 'detector.pth')


def test_depths_and_frozen_stages() -> None:
    model = backbone('vit_tiny_patch16_224', frozen_stages=1, with_cp=True)
    assert model.model.grad_checkpointing
    depths = {n: model.get_layer_depth(f'backbone.{n}', 'backbone.') for n, _ in model.named_parameters()}
    assert depths['model.pos_embed'] == depths['model.patch_embed.proj.weight'] == (0, 6)
    assert depths['model.blocks.3.mlp.fc1.weight'] == (4, 6)
    assert model.get_layer_depth('neck.weight', 'backbone.') == (5, 6)
    frozen = {n for n, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {n for n, (depth, _) in depths.items() if depth <= 2}
    assert {'model.pos_embed', 'model.cls_token'} <= model.no_weight_decay

    model = backbone('resnet18', frozen_stages=1).train()
    assert not model.model.layer1.training and model.model.layer2.training
    assert all('layer' not in n or 'layer1' in n for n, p in model.named_parameters() if not p.requires_grad)


def test_weights_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('timm.models._builder.load_state_dict_from_hf', Mock(side_effect=OSError('no network')))
    model = backbone('vit_tiny_patch16_224', init_cfg=dict(type='Pretrained', checkpoint='timm://'))
    with pytest.raises(InputError, match='cannot be had from timm://: no network; name a file of them'):
        model.init_weights()
    torch.save({'blocks.0.weight': torch.zeros(1)}, tmp_path / 'other.pth')
    source = dict(type='Pretrained', checkpoint=str(tmp_path / 'other.pth'))
    with pytest.raises(InputError, match=r'cannot be had from .*other.pth'):
        backbone('vit_tiny_patch16_224', init_cfg=source).init_weights()
