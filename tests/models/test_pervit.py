"""PerViT: the recorded vectors, any input size, initial values, checkpoints, and OpenMMLab's switches."""

import json

import numpy as np
import pytest
import torch

from bioattn_mm.models import PerViT
from tests import parity

SMALL = dict(embed_dims=(4, 8, 8, 12), depths=(2, 2, 6, 2), stem_channels=(4, 4, 4), num_heads=2)


def save_release(path, variant: str) -> str:
    """A file laid out like the authors' ImageNet release."""
    torch.save({'model': parity.released_state_dict(f'pervit_{variant}'), 'epoch': 299}, path)
    return str(path)


@pytest.mark.parametrize('name', parity.vectors('pervit'))
@pytest.mark.parametrize('backend', ['', 'reference'], ids=['compiled', 'reference'])
def test_matches_the_recorded_features(name: str, backend: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('BIOATTN_MM_BACKEND', backend)
    vector = parity.read_vector(name)
    backbone = PerViT(
        vector['variant'],
        init_cfg=dict(type='Pretrained', checkpoint=save_release(tmp_path / 'release.pth', vector['variant'])),
    )
    backbone.init_weights()
    parity.check_features(backbone.eval(), name)
    with torch.no_grad():  # the reference caches log Phi_p
        parity.check_features(backbone, name)


@pytest.mark.parametrize('variant', ['tiny', 'small', 'medium'])
def test_parameters_are_those_of_the_release(variant: str) -> None:
    manifest = json.loads((parity.FOLDER / f'manifest_pervit_{variant}.json').read_text())
    released = sum(
        int(np.prod(shape))
        for name, shape in manifest.items()
        if not name.startswith('head.') and 'running_' not in name and 'num_batches' not in name
    )
    with torch.device('meta'):
        backbone = PerViT(variant, position_init='random')
    assert sum(parameter.numel() for parameter in backbone.parameters()) == released


@pytest.mark.parametrize('position_init', ['peripheral', 'conv'])
@torch.no_grad()
def test_initial_position_is_local_first(position_init: str) -> None:
    backbone = PerViT(SMALL, position_init=position_init)
    grid = (9, 9)
    biases = [block.attn.position_bias(grid, backbone.distance_embedding) for block in backbone.blocks]
    centre, neighbour, corner = 40, 41, 0
    first, last = (bias[:, centre].exp() for bias in (biases[0], biases[-1]))
    assert (first[:, centre] == 1).all() and (first[:, neighbour] < 1).all() and (first[:, corner] < 0.1).all()
    if position_init == 'peripheral':
        assert (last > 0.99).all()
    else:
        torch.testing.assert_close(last, first)


def test_random_initialisation_keeps_the_norms() -> None:
    backbone = PerViT(SMALL, position_init='random')
    for block in backbone.blocks:
        assert (block.attn.position.norm2.weight == 1).all() and (block.attn.position.norm2.bias == 0).all()


@torch.no_grad()
def test_memory_kept_is_shared_out_among_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('BIOATTN_MM_BACKEND', 'reference')
    image = torch.randn(1, 3, 64, 64)
    kept = PerViT(SMALL, cache_mebibytes=1).eval()
    computed = PerViT(SMALL, cache_mebibytes=0).eval()
    computed.load_state_dict(kept.state_dict())
    for a, b in zip(kept(image), computed(image), strict=True):
        torch.testing.assert_close(a, b)
    assert all(len(block.attn._position_biases) == 1 for block in kept.blocks)
    assert all(len(block.attn._position_biases) == 0 for block in computed.blocks)


def test_says_which_keys_were_not_used(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = []
    monkeypatch.setattr('bioattn_mm.models.backbones.base.print_log', lambda line, logger: lines.append(line))
    path = save_release(tmp_path / 'release.pth', 'tiny')
    backbone = PerViT('tiny', init_cfg=dict(type='Pretrained', checkpoint=path))
    backbone.init_weights()
    number = len(backbone.state_dict())
    assert lines == [f'PerViT: loaded {path}; {number} entries used, not used: head.weight, head.bias']


def test_checkpoint_of_another_variant(tmp_path) -> None:
    path = save_release(tmp_path / 'release.pth', 'tiny')
    shape = r'stem.0.0.weight \(file \(48, 3, 3, 3\), model \(4, 3, 3, 3\)\)'
    with pytest.raises(ValueError, match=shape):
        PerViT(SMALL, init_cfg=dict(type='Pretrained', checkpoint=path)).init_weights()


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(arch='huge'), "arch must be one of tiny, small, medium or a dict, got 'huge'"),
        (dict(arch=dict(num_heads=4)), 'arch as a dict needs the keys depths, embed_dims, num_heads, stem_channels'),
        (dict(arch={**SMALL, 'embed_dims': (4, 8)}), r'embed_dims of arch needs 4 values, got \(4, 8\)'),
        (dict(arch={**SMALL, 'num_heads': 8}), 'embed_dims must be a multiple of num_heads, got 4 and 8'),
        (dict(arch=SMALL, out_indices=(0, 12)), r'out_indices must be stages 0 to 11, got \(0, 12\)'),
        (dict(arch=SMALL, frozen_stages=12), 'frozen_stages must be -1 to 11, got 12'),
        (dict(arch=SMALL, position_init='local'), "position_init must be .*, got 'local'"),
    ],
)
def test_arguments_that_are_wrong(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PerViT(**options)
