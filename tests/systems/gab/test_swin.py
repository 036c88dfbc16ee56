"""GABSwin: the plain Swin where the Gaussians are switched off, files of two sources."""

from pathlib import Path

import pytest
import torch
from mmdet.models.backbones.swin import SwinTransformer as MMDetSwin
from mmdet.models.backbones.swin import swin_converter
from mmengine.registry import DefaultScope
from mmpretrain.models import SwinTransformer as MMPretrainSwin
from torch import Tensor, nn

from bioattn_mm.checkpoints.meta_models import on_meta
from bioattn_mm.systems.gab import GABSwin
from tests.systems.common.small_backbones import CASES, loaded
from tests.systems.layers import values_of_gaussians
from tests.systems.timm_models.classifiers import classifier

SMALL = CASES['GABSwin'].arch


def plain_swin() -> MMDetSwin:
    """mmdet's Swin with values of which all matter."""
    host = MMDetSwin(**SMALL, drop_path_rate=0.0)
    host.eval()
    for name, parameter in host.named_parameters():
        # Biases large enough that neighbours differ.
        std = 1.0 if 'bias_table' in name else 0.05
        parameter.data += std * torch.randn(parameter.shape)
    return host


def released_names(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """A file as the Swin authors lay it out for a state dict of mmdet: the inverse of what mmdet does to theirs."""
    released = {}
    for name, value in state_dict.items():
        if name.startswith(('norm0', 'norm1', 'norm2', 'norm3')):
            continue
        if 'downsample' in name:  # (channel, row, column) to (column, row, channel)
            value = value.unflatten(-1, (-1, 2, 2)).transpose(-1, -3).flatten(-3)
        for old, new in (
            ('stages.', 'layers.'),
            ('attn.w_msa.', 'attn.'),
            ('ffn.layers.0.0.', 'mlp.fc1.'),
            ('ffn.layers.1.', 'mlp.fc2.'),
            ('projection', 'proj'),
        ):
            name = name.replace(old, new)
        released[name] = value
    released['layers.0.blocks.1.attn_mask'] = torch.zeros(64, 49, 49)
    released['norm.weight'], released['norm.bias'] = torch.ones(128), torch.zeros(128)
    released['head.weight'], released['head.bias'] = torch.zeros(1000, 128), torch.zeros(1000)
    return released


@pytest.mark.parametrize(('amplitude', 'size'), [(0.0, (224, 224)), (1.5, (33, 47)), (1.5, (200, 97))], ids=str)
@torch.no_grad()
def test_it_is_the_plain_swin_with_a_bias_of_equation_3(amplitude: float, size: tuple[int, int]) -> None:
    """The same values in the host's own table of relative positions."""
    host, backbone = plain_swin(), GABSwin(SMALL, amplitude=amplitude, sigma=2.0).eval()
    backbone.load_state_dict(host.state_dict(), strict=False)
    dy, dx = torch.meshgrid(torch.arange(-6.0, 7), torch.arange(-6.0, 7), indexing='ij')
    for name, parameter in host.named_parameters():
        if 'bias_table' in name:
            parameter += (amplitude**2 * torch.exp(-(dx**2 + dy**2) / 8)).flatten()[:, None]
    other_host = MMPretrainSwin(SMALL, pad_small_map=True, out_indices=(0, 1, 2, 3), drop_path_rate=0.0)
    other_host.load_state_dict(host.state_dict())
    image = torch.randn(2, 3, *size)
    for outputs in (host(image), other_host(image)):
        torch.testing.assert_close(backbone(image), outputs, rtol=0, atol=1e-5)


@pytest.mark.parametrize('arch', ['tiny', 'small', 'base'])
def test_names_and_shapes_are_those_of_mmdet(arch: str) -> None:
    with on_meta():
        host, backbone = MMDetSwin(**GABSwin.arch_settings[arch]), GABSwin(arch)
    own = {name: value.shape for name, value in backbone.state_dict().items() if 'gaussian' not in name}
    assert own == {name: value.shape for name, value in host.state_dict().items()}


def test_initial_values() -> None:
    assert values_of_gaussians(GABSwin(SMALL)) == [(1, 3.5)] * 8
    assert values_of_gaussians(GABSwin(SMALL, window_size=12))[0] == (1, 6)
    assert values_of_gaussians(GABSwin(SMALL, sigma=2.0, amplitude=0.5))[3] == (0.5, 2)


@pytest.mark.parametrize('is_released', [True, False], ids=['release', 'mmdet'])
@torch.no_grad()
def test_loads_files_of_two_sources(is_released: bool, tmp_path: Path, lines: list[str]) -> None:
    host = plain_swin()
    checkpoint = dict(host.state_dict())
    if is_released:
        for stage in range(4):  # as mmdet has them after loading an ImageNet file
            host.get_submodule(f'norm{stage}').reset_parameters()
        checkpoint = {'model': released_names(host.state_dict())}
        converted = swin_converter(checkpoint['model'])  # this is how mmdet reads it
        for name, value in host.state_dict().items():
            assert name.startswith('norm') or torch.equal(converted[f'backbone.{name}'], value)
    backbone = loaded(GABSwin, checkpoint, tmp_path, SMALL, amplitude=0.0, sigma=2.5)
    image = torch.randn(1, 3, 90, 130)
    torch.testing.assert_close(backbone(image), host(image), rtol=0, atol=1e-5)
    assert {sigma for _, sigma in values_of_gaussians(backbone)} == {2.5}
    assert 'left at their initial values: stages.0.blocks.0.attn.w_msa.gaussian.amplitude, ' in lines[0]
    unused = 'layers.0.blocks.1.attn_mask, norm.weight, norm.bias, head.weight, head.bias'
    assert (f', not used: {unused};' in lines[0]) == is_released


@torch.no_grad()
def test_whole_classifier_of_the_release_gives_its_logits(tmp_path: Path) -> None:
    host, fc = MMPretrainSwin(SMALL, drop_path_rate=0.0), nn.Linear(128, 10)
    host.eval()
    for parameter in host.parameters():
        parameter += 0.1 * torch.randn(parameter.shape)
    released = released_names(host.state_dict())
    released |= {'norm.weight': host.norm3.weight, 'norm.bias': host.norm3.bias}
    released |= {'head.weight': fc.weight, 'head.bias': fc.bias}
    torch.save({'model': released}, tmp_path / 'swin.pth')
    backbone = dict(type='GABSwin', arch=SMALL, pad_small_map=False, amplitude=0.0)
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'swin.pth'))
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = classifier(backbone, 128, 10, init_cfg=init_cfg)
    model.init_weights()
    image = torch.randn(2, 3, 224, 224)
    torch.testing.assert_close(model.eval()(image), fc(host(image)[-1].mean((2, 3))), rtol=0, atol=1e-5)
