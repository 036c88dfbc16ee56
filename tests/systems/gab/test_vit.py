"""GABViT: timm's model where the Gaussians are switched off, timm's files, any input size, OpenMMLab's switches."""

from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from bioattn_mm.checkpoints.meta_models import on_meta
from bioattn_mm.errors import InputError
from bioattn_mm.systems.gab import GABViT
from tests.needs import needs
from tests.systems.common.small_backbones import CASES, loaded
from tests.systems.layers import values_of_gaussians

SMALL = CASES['GABViT'].arch


@pytest.mark.parametrize('arch', ['small', 'medium', 'base'])
def test_names_and_shapes_are_those_of_timm(arch: str) -> None:
    with on_meta():
        host, backbone = timm.create_model(f'vit_relpos_{arch}_patch16_224', num_classes=0), GABViT(arch)
    own = {name: value.shape for name, value in backbone.state_dict().items() if 'gaussian' not in name}
    theirs = {name: value.shape for name, value in host.state_dict().items() if not name.startswith('fc_norm')}
    assert own == theirs


@pytest.mark.parametrize('size', [(224, 224), pytest.param((96, 160), marks=needs('timm>=1.0.31'))], ids=str)
@torch.no_grad()
def test_without_amplitude_it_is_the_model_of_timm(size: tuple[int, int], tmp_path: Path) -> None:
    host = timm.create_model('vit_relpos_small_patch16_224', embed_dim=16, num_heads=2).eval()
    for name, parameter in host.named_parameters():
        if name.endswith('gamma'):  # timm's layer scale of 1e-6 hides all the blocks
            nn.init.uniform_(parameter, 0.5, 1)
        elif 'rel_pos.mlp' in name:
            nn.init.normal_(parameter, std=0.5)
    backbone = loaded(GABViT, host.state_dict(), tmp_path, SMALL, amplitude=0.0)
    if size != (224, 224):
        host.set_input_size(size)
    image = torch.randn(2, 3, *size)
    outputs = backbone(image)
    wanted = host.forward_intermediates(image, indices=[3, 7, 9, 11], intermediates_only=True)
    torch.testing.assert_close(list(outputs), wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(outputs[-1].flatten(2).mT, host.forward_features(image), rtol=0, atol=1e-5)


def test_initial_values() -> None:
    assert values_of_gaussians(GABViT(SMALL)) == [(1, 5)] * 12
    assert values_of_gaussians(GABViT(SMALL, sigma=3.0, amplitude=0.5, out_indices=(1,))) == [(0.5, 3)] * 2


@pytest.mark.parametrize('with_gaussians', [False, True])
def test_files_with_and_without_gaussians(with_gaussians: bool, tmp_path: Path, lines: list[str]) -> None:
    source = GABViT(SMALL, sigma=1.5, amplitude=2.0).state_dict()
    weights = {f'backbone.{n}': value for n, value in source.items() if with_gaussians or 'gaussian' not in n}
    backbone = loaded(GABViT, {'state_dict': weights}, tmp_path, SMALL, sigma=2.5)
    assert set(values_of_gaussians(backbone)) == {(2, 1.5) if with_gaussians else (1, 2.5)}
    for name, value in backbone.state_dict().items():
        assert 'gaussian' in name or torch.equal(value, source[name])
    said = 'all of the file' if with_gaussians else 'initial values: blocks.0.attn.rel_pos.gaussian.amplitude'
    assert said in lines[0]


def test_file_that_lacks_more_than_gaussians(tmp_path) -> None:
    weights = GABViT(SMALL).state_dict()
    del weights['blocks.3.attn.rel_pos.mlp.fc1.weight']
    with pytest.raises(InputError, match='1 missing in the file: blocks.3.attn.rel_pos.mlp.fc1.weight'):
        loaded(GABViT, weights, tmp_path, SMALL)
