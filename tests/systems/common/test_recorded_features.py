"""Every backbone with weights as the authors released them has the features that the authors' own code had."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bioattn_mm.systems.convit import ConViT
from bioattn_mm.systems.gab import GABViT
from bioattn_mm.systems.pervit import PerViT
from bioattn_mm.systems.transnext import TransNeXt
from bioattn_mm.systems.vars import VARS
from tests import parity

from .small_backbones import VARS_NAMES, loaded


def released(name: str, folder: Path) -> nn.Module:
    """The backbone of a vector, with the weights of a file like the release's."""
    vector = parity.read_json(name)
    variant, size, attention = vector['variant'], tuple(vector['image'][2:]), vector.get('attention')
    cls, manifest = {
        'TransNeXt': (TransNeXt, f'transnext_{variant}'),
        'ConViT': (ConViT, f'convit_{variant}'),
        'PerViT': (PerViT, f'pervit_{variant}'),
        'GAB': (GABViT, f'gab_vit_{variant}'),
        'VARS': (VARS, f'vars_rvt_tiny_{attention}'),
    }[vector['system']]
    weights, options = parity.released_state_dict(manifest), {}
    if cls is TransNeXt:
        options = dict(bias_mode=vector['position_bias'].split()[0], img_size=vector['pretrain_size'])
    elif cls is ConViT:
        options = dict(pretrain_size=size)
        if size != (224, 224):  # a reference of its own size, whose embedding has that grid
            tokens = (size[0] // 16) * (size[1] // 16)
            weights['pos_embed'] = parity.fill_value('pos_embed', [1, tokens, weights['pos_embed'].shape[-1]])
    elif cls is GABViT:
        options = dict(out_indices=(11,))
    elif cls is VARS:  # the release's lambda of VARS-S, with which its features were recorded
        options = dict(attention=VARS_NAMES[attention], sparsity=3.5 if attention == 'vars_s' else None)
    return loaded(cls, {'model': weights, 'epoch': 299}, folder, arch=variant.lower(), **options)


SYSTEMS = ('transnext', 'convit', 'gab', 'vars', 'pervit')


@pytest.mark.parametrize(
    ('name', 'backend'),
    [(name, '') for system in SYSTEMS for name in parity.vectors(system)]
    # Where nothing is compiled, PerViT keeps log Phi_p.
    + [(name, 'reference') for name in parity.vectors('pervit')],
)
@torch.no_grad()
def test_features_are_the_recorded_ones(
    name: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('BIOATTN_MM_BACKEND', backend)
    parity.check_features(released(name, tmp_path), name)


@torch.no_grad()
def test_step_bounds_of_vars_are_the_recorded_ones(tmp_path: Path) -> None:
    backbone = released('vars_rvt_tiny_vars_s_224x224', tmp_path)
    recorded = np.load(parity.FOLDER / 'vars_rvt_tiny_vars_s_224x224_L.npz')
    assert len(recorded.files) == 12
    for name in recorded.files:
        block = backbone.get_submodule(VARS.release.rename(name).removesuffix('.L'))
        bound = block.attn.step_bound(block.attn.dictionary(block.attn.grid))
        np.testing.assert_allclose(bound.flatten(), recorded[name], rtol=1e-5)
