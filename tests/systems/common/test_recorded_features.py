"""Every backbone with weights as the authors released them has the features that the authors' own code had."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bioattn_mm.checkpoints.meta_models import on_meta
from bioattn_mm.systems.convit import ConViT
from bioattn_mm.systems.gab import GABViT
from bioattn_mm.systems.pervit import PerViT
from bioattn_mm.systems.transnext import TransNeXt
from bioattn_mm.systems.vars import VARS
from tests import parity

from .small_backbones import loaded

CLASSES = dict(transnext=TransNeXt, convit=ConViT, pervit=PerViT, gab=GABViT, vars=VARS)
# Released state dicts.
MANIFESTS = sorted(path.stem.removeprefix('manifest_') for path in parity.FOLDER.glob('manifest_*.json'))
# Attentions that VARS's release has other names for.
OTHER_NAMES = {'self-att': 'softmax', 'perf': 'performer'}


def taker_of(manifest: str) -> tuple[type[nn.Module], dict]:
    """The backbone that takes a released state dict, and its arguments."""
    system, variant = manifest.split('_', 1)
    if system == 'vars':
        _, size, attention = variant.split('_', 2)
        return VARS, dict(arch=f'rvt-{size}', attention=OTHER_NAMES.get(attention, attention))
    return CLASSES[system], dict(arch=variant.removeprefix('vit_').lower().replace('_', '-'))


def released(name: str, folder: Path) -> nn.Module:
    vector, manifest = parity.read_json(name), max(filter(name.startswith, MANIFESTS), key=len)
    weights, size, (cls, options) = parity.released_state_dict(manifest), vector['image'][2:], taker_of(manifest)
    if cls is TransNeXt:
        options.update(bias_mode=vector['position_bias'].split()[0], img_size=vector['pretrain_size'])
    elif cls is ConViT:
        options.update(pretrain_size=tuple(size))
        if size != [224, 224]:  # a reference of its own size, whose embedding has that grid
            tokens = (size[0] // 16) * (size[1] // 16)
            weights['pos_embed'] = parity.fill_value('pos_embed', [1, tokens, weights['pos_embed'].shape[-1]])
    elif cls is GABViT:
        options.update(out_indices=(11,))
    elif options.get('attention') == 'vars_s':  # the release's lambda, with which its features were recorded
        options.update(sparsity=3.5)
    return loaded(cls, {'model': weights, 'epoch': 299}, folder, **options)


@pytest.mark.parametrize(
    ('name', 'backend'),
    [(name, '') for system in CLASSES for name in parity.vectors(system)]
    # Where nothing is compiled, PerViT keeps log Phi_p.
    + [(name, 'reference') for name in parity.vectors('pervit')],
)
@torch.no_grad()
def test_features_are_recorded_ones(name: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize('manifest', MANIFESTS)
def test_every_weight_of_the_release_is_used(manifest: str) -> None:
    cls, options = taker_of(manifest)
    with on_meta():
        backbone = cls(**options)
    rename = cls.release.rename
    own = {name: value.numel() for name, value in backbone.state_dict().items()}
    theirs = {rename(name): value.numel() for name, value in parity.released_state_dict(manifest).items()}
    # The classifier's, and what VARS's release computes from its other parameters or never reads.
    unused = {name.rpartition('.')[2] if 'blocks' in name else name for name in theirs if name not in own}
    assert unused <= {'fc_norm.weight', 'fc_norm.bias', 'head.weight', 'head.bias', 'L', 'kernel_norm'}
    assert own == {name: number for name, number in theirs.items() if name in own}
    assert all(rename(name) == name for name in own)  # those of this package's files stay
