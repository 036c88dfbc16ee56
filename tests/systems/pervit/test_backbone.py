"""PerViT: the recorded vectors, any input size, initial values, checkpoints, and OpenMMLab's switches."""

import json

import numpy as np
import pytest
import torch
from timm.models import VisionTransformer

from bioattn_mm.checkpoints.meta_models import on_meta
from bioattn_mm.systems.common.attention_recorder import record_attention
from bioattn_mm.systems.pervit import PerViT
from tests import parity

SMALL = dict(embed_dims=(4, 8, 8, 12), depths=(2, 2, 6, 2), stem_channels=(4, 4, 4), num_heads=2)
# DeiT, whose blocks have one width.
DEIT = dict(
    arch=dict(embed_dims=(12,) * 4, depths=(1,) * 4, stem_channels=(4, 4, 4), num_heads=3),
    stem=dict(type='bioattn_mm.PatchStem'),
    position_conv=dict(type='bioattn_mm.NoConditionalPosition'),
    pos_embed=dict(type='bioattn_mm.PositionEmbedding'),
    out_indices=(3,),
)
# Rows of the paper's tables 1, 2 and 5.
ROWS = {
    'Phi_p alone': dict(token_mixers=dict(type='bioattn_mm.PositionAttention')),
    'Phi_c alone': dict(token_mixers=dict(type='bioattn_mm.ContentAttention')),
    'no stem': dict(stem=dict(type='bioattn_mm.PatchStem')),
    'no CPE': dict(position_conv=dict(type='bioattn_mm.NoConditionalPosition')),
    'Euc + ML': dict(token_mixers=dict(position=dict(type='bioattn_mm.VariedPosition', with_neighbours=False))),
    'Euc': dict(
        token_mixers=dict(position=dict(type='bioattn_mm.VariedPosition', with_neighbours=False, num_layers=1))
    ),
    'Lrn + N + ML': dict(
        distance_embedding=dict(type='bioattn_mm.VectorDistance'),
        token_mixers=dict(position=dict(type='bioattn_mm.VariedPosition')),
        position_init='random',
    ),
    'DeiT': dict(DEIT, token_mixers=dict(qkv_bias=True)),
}
# No row of a table: another attention in some of the blocks.
ROWS['Phi_c alone in the first two blocks'] = dict(
    token_mixers=[dict(type='bioattn_mm.ContentAttention')] * 2 + [dict()] * 10
)


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
    with on_meta():
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


def test_random_initialisation_of_every_parameter() -> None:
    """w_r, both projections and both norms (PerViT, table 5, 'Rand')."""
    backbone = PerViT(SMALL, position_init='random')
    values = [('w_r', backbone.distance_embedding.proj.weight)]
    values += [(name, value) for block in backbone.blocks for name, value in block.attn.position.named_parameters()]
    for name, value in values:
        assert value.unique().numel() == value.numel(), name
    bias = torch.stack([block.attn.position.norm2.bias for block in backbone.blocks])
    assert -5 <= bias.min() < bias.max() <= 4 and bias.std() > 1


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


@pytest.mark.parametrize('row', ROWS)
def test_rows_of_the_tables(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('BIOATTN_MM_BACKEND', 'reference')  # caches in eval mode
    backbone = PerViT(**{'arch': SMALL, **ROWS[row]})
    image = torch.randn(2, 3, 45, 70)
    outputs = backbone(image)
    for output, channels in zip(outputs, backbone.out_channels, strict=True):
        assert output.shape == (2, channels, 3, 5)
    sum(output.square().sum() for output in outputs).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in backbone.parameters())
    with torch.no_grad():
        backbone.eval()  # BatchNorm
        want = [output.clone() for output in backbone(image)]
        for a, b in zip(backbone(image), want, strict=True):
            torch.testing.assert_close(a, b)
        for recording in record_attention(backbone, image):
            maps = recording.maps(torch.tensor([0, 7]))
            assert maps['attention'].weights.shape == (2, recording.layer.num_heads, 2, 3, 5)
            sums = maps['attention'].weights.sum((-2, -1))
            torch.testing.assert_close(sums, torch.ones_like(sums))
    # No row has the parameters of the whole model.
    assert backbone.state_dict().keys() != PerViT(SMALL).state_dict().keys()


def test_single_layer_starts_as_local_as_two() -> None:
    """Eq. 9: the second norm's initial values make the first block local and the last one global."""
    backbone = PerViT(SMALL, **ROWS['Euc'])
    biases = [block.attn.position_bias((9, 9), backbone.distance_embedding) for block in backbone.blocks]
    centre, neighbour, corner = 40, 41, 0
    first, last = (bias[:, centre].exp() for bias in (biases[0], biases[-1]))
    assert (first[:, centre] == 1).all() and (first[:, neighbour] < 1).all() and (first[:, corner] < 0.1).all()
    assert (last > 0.99).all()


@torch.no_grad()
def test_blocks_without_position_leave_the_others_as_they_start() -> None:
    whole = PerViT(SMALL)
    part = PerViT(SMALL, **ROWS['Phi_c alone in the first two blocks'])
    for index in (2, 11):
        a, b = (m.blocks[index].attn.position_bias((5, 5), m.distance_embedding) for m in (whole, part))
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)  # random biases of R, which the norm subtracts


@torch.no_grad()
def test_deit_is_that_of_timm_without_class_token() -> None:
    theirs = VisionTransformer(
        embed_dim=12, depth=4, num_heads=3, class_token=False, global_pool='avg', fc_norm=False, num_classes=0
    ).eval()
    mixer = dict(type='bioattn_mm.ContentAttention', qkv_bias=True)
    backbone = PerViT(**DEIT, token_mixers=mixer, out_type='avg_featmap').eval()
    names = (('patch_embed.proj.', 'stem.'), ('pos_embed', 'pos_embed.weight'))
    weights = theirs.state_dict()
    for theirs_name, own in names:
        weights = {
            own + name.removeprefix(theirs_name) if name.startswith(theirs_name) else name: value
            for name, value in weights.items()
        }
    backbone.load_state_dict(weights)
    image = torch.randn(2, 3, 224, 224)
    torch.testing.assert_close(backbone(image)[0], theirs(image), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(arch={**SMALL, 'embed_dims': (4, 8)}), r'embed_dims of arch needs 4 values, got \(4, 8\)'),
        (dict(arch={**SMALL, 'num_heads': 8}), 'embed_dims must be a multiple of num_heads, got 4 and 8'),
        (dict(arch=SMALL, position_init='local'), "position_init must be .*, got 'local'"),
        (dict(arch=SMALL, stem=dict(type='PatchStem', patch=8)), 'PatchStem has no argument patch'),
        (dict(arch=SMALL, token_mixers=[{}] * 4), 'token_mixers must be one dict or 12 of them'),
    ],
)
def test_arguments_that_are_wrong(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PerViT(**options)
