"""tools/analysis/fit_position_bias.py: a bias that is a Gaussian is found again, and nothing is overwritten."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn

from bioattn_mm.analysis.maps import fit_gaussian

from ..analysis.small_backbones import build, write_config
from .running import ROOT, InProcess, read_csv

TOOL = 'analysis/fit_position_bias.py'
VIT = dict(arch=dict(embed_dims=16, num_layers=4, num_heads=2), out_indices=(3,))
SWIN = dict(arch=dict(embed_dims=16, depths=(1, 1, 1, 2), num_heads=(1, 2, 4, 8)), window_size=7)


@pytest.mark.parametrize(('kind', 'settings'), [('GABViT', VIT), ('GABSwin', SWIN)])
def test_gives_back_the_gaussian_of_each_layer(kind: str, settings: dict, tmp_path: Path, tool: InProcess) -> None:
    backbone = build(kind, **settings)
    for name, parameter in backbone.named_parameters():
        if 'rel_pos.mlp' in name or 'bias_table' in name:  # which leaves the Gaussian alone
            nn.init.zeros_(parameter)
    layers = [module for module in backbone.modules() if hasattr(module, 'sigma')]
    for index, layer in enumerate(layers):
        layer.sigma.data.fill_(0.8 + 0.1 * index)
        layer.amplitude.data.fill_(0.5 + 0.1 * index)
    torch.save({'state_dict': {f'backbone.{n}': v for n, v in backbone.state_dict().items()}}, tmp_path / 'file.pth')
    printed = tool(tmp_path, TOOL, write_config(tmp_path, kind, **settings), 'file.pth', '--out', 'out')

    rows, document = read_csv(tmp_path / 'out/table.csv'), json.loads((tmp_path / 'out/table.json').read_text())
    assert [row['layer'] for row in rows] == [row['layer'] for row in document]
    names = ['centre patch', 'offsets']
    assert [row['map'] for row in rows] == names * len(layers)
    for number, row in enumerate(rows):
        index, name = number // 2, names[number % 2]
        assert float(row['r_squared']) == pytest.approx(1, abs=1e-3)
        sigmas = [float(row['sigma_x']), float(row['sigma_y'])]
        # What is subtracted, the least value of the Gaussian, is next to nothing for these widths.
        assert sigmas == pytest.approx([0.8 + 0.1 * index] * 2, rel=2e-2)
        assert float(row['amplitude']) == pytest.approx((0.5 + 0.1 * index) ** 2, rel=2e-2)
        # The patch before the middle of 14 is half a patch from it; a window of 7 has a patch in the middle.
        middle = -0.5 * (kind == 'GABViT' and name == 'centre patch')
        assert [float(row['center_x']), float(row['center_y'])] == pytest.approx([middle] * 2, abs=1e-2)
    assert rows[-1]['layer'] == ('block 3' if kind == 'GABViT' else 'stage 3 block 1')
    assert 'sigma' in printed
    for name in ('centre_patch.png', 'offsets.png', 'slices.png'):
        assert np.asarray(Image.open(tmp_path / 'out' / name).convert('L')).std() > 10


def test_layers_of_timm(tmp_path: Path, tool: InProcess) -> None:
    torch.save(timm.create_model('test_vit_relpos').state_dict(), tmp_path / 'timm.pth')
    tool(tmp_path, TOOL, 'test_vit_relpos', 'timm.pth', '--layer', -1, 0, '--untrained', '--out', 'some')
    rows = read_csv(tmp_path / 'some/table.csv')
    assert [row['layer'] for row in rows[::2]] == ['block 8', 'block 0']
    assert all(0 <= float(row['r_squared']) < 1 for row in rows)
    line = tool.refused(tmp_path, TOOL, 'test_vit_relpos', 'timm.pth', '--layer', 9, '--out', 'none')
    assert line == 'error: --layer must be -9 to 8 in this model, got 9'


def test_slices_are_the_bias_of_each_patch() -> None:
    """Against timm's own bias of all pairs of patches."""
    functions = runpy.run_path(str(ROOT / 'tools' / TOOL))
    module = timm.layers.RelPosBias((3, 4), 2, prefix_tokens=1)
    nn.init.normal_(module.relative_position_bias_table)
    for table, pairs in zip(functions['table_of_timm'](module), module.get_bias()[0, :, 1:, 1:]):
        table, pairs = table.detach().numpy(), pairs.detach().numpy()
        np.testing.assert_array_equal(functions['slices_of'](table, torch.arange(12)), pairs.reshape(12, 3, 4))
        np.testing.assert_array_equal(functions['centre_map'](table), pairs[1 * 4 + 1].reshape(3, 4))
    assert functions['middle_patch']((14, 14)) == (6, 6)  # the patch 90 of the paper


def test_fit_of_a_dip_of_noise_and_above_the_least_value() -> None:
    """The latter as in table 1 of GAB: no offset is fitted, and what has no pattern may get any width."""
    y, x = np.mgrid[-9:10, -13:14]
    bump = np.exp(-((x - 1) ** 2) / (2 * 4**2) - (y + 2) ** 2 / (2 * 2**2))
    wanted = dict(r_squared=1, sigma_x=4, sigma_y=2, amplitude=-2.5, center_x=1, center_y=-2, offset=4)
    assert fit_gaussian(4 - 2.5 * bump) == pytest.approx(wanted, rel=1e-4)
    wanted |= dict(amplitude=2, offset=-7)
    assert fit_gaussian(2 * bump - 7, from_minimum=True) == pytest.approx(wanted, rel=1e-2)

    noise = np.random.default_rng(0).normal(size=x.shape)
    assert 0 <= fit_gaussian(noise)['r_squared'] < 0.2
    assert all(np.isnan(value) for value in fit_gaussian(np.full((5, 5), 3.0)).values())
    values = fit_gaussian(np.exp(-(x**2) / 8) + 0.01 * noise, from_minimum=True)
    assert values['sigma_y'] > 50 and values['r_squared'] > 0.9


REFUSED = {
    'no.py': 'config not found: no.py',
    'gab/upernet_swin_small_ade20k': 'checkpoint not found: absent.pth',
    'resnet18': "resnet18 is neither a config file nor one of timm's models with relative positions",
    'vit_relpos_small_patch16_224': 'checkpoint not found: absent.pth',
    'convit.py': 'convit.py has the backbone ConViT: expected GABViT or GABSwin',
}


@pytest.mark.parametrize(('model', 'message'), REFUSED.items())
def test_refuses_what_it_cannot_read(model: str, message: str, tmp_path: Path, tool: InProcess) -> None:
    if model == 'convit.py':
        write_config(tmp_path, 'ConViT')
        torch.save(build('ConViT').state_dict(), tmp_path / 'absent.pth')
    assert tool.refused(tmp_path, TOOL, model, 'absent.pth', '--out', 'out') == f'error: {message}'
