"""VARS: the recorded vectors, the hosts, any input size, and OpenMMLab's switches."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bioattn_mm.checkpoints.meta_models import on_meta
from bioattn_mm.errors import InputError
from bioattn_mm.systems.common.attention_recorder import record_attention
from bioattn_mm.systems.vars import VARS
from tests import parity
from tests.systems.real_picture import real_picture

MANIFESTS = sorted(path.stem.removeprefix('manifest_') for path in parity.FOLDER.glob('manifest_vars_*.json'))
# The release's names of attentions -> names here.
ATTENTIONS = {
    'self-att': 'softmax',
    'perf': 'performer',
    'vars_s': 'vars_s',
    'vars_d': 'vars_d',
    'vars_sd': 'vars_sd',
}
SMALL = dict(block='rvt', embed_dims=[8, 16], depths=[10, 2], num_heads=[2, 4], feature_ratio=2)
SMALL_DEIT = dict(block='deit', embed_dims=[8], depths=[12], num_heads=[2], feature_ratio=1)
SMALL_GFNET = dict(block='gfnet', embed_dims=[8], depths=[12], num_heads=[2], feature_ratio=2)
HOSTS = pytest.mark.parametrize('arch', [SMALL, SMALL_DEIT, SMALL_GFNET], ids=['rvt', 'deit', 'gfnet'])


def pretrained(path) -> dict:
    return dict(type='Pretrained', checkpoint=str(path))


def released(attention: str, path) -> VARS:
    """RVT-Ti with the weights of a file like the release's."""
    torch.save({'model': parity.released_state_dict(f'vars_rvt_tiny_{attention}')}, path)
    # The release's lambda of VARS-S, with which its features were recorded.
    sparsity = 3.5 if attention == 'vars_s' else None
    backbone = VARS('rvt-tiny', ATTENTIONS[attention], sparsity=sparsity, init_cfg=pretrained(path))
    backbone.init_weights()
    return backbone.eval()


@pytest.mark.parametrize('name', parity.vectors('vars'))
@torch.no_grad()
def test_matches_the_recorded_features(name: str, tmp_path) -> None:
    vector = parity.read_vector(name)
    backbone = released(vector['attention'], tmp_path / 'release.pth')
    parity.check_features(backbone, name)


@torch.no_grad()
def test_step_bounds_of_the_convolution_are_the_recorded_ones(tmp_path) -> None:
    backbone = released('vars_s', tmp_path / 'release.pth')
    recorded = np.load(parity.FOLDER / 'vars_rvt_tiny_vars_s_224x224_L.npz')
    assert len(recorded.files) == 12
    for name in recorded.files:
        block = backbone.get_submodule(VARS.release.rename(name).removesuffix('.L'))
        bound = block.attn.step_bound(block.attn.dictionary(block.attn.grid))
        np.testing.assert_allclose(bound.flatten(), recorded[name], rtol=1e-5)


@pytest.mark.parametrize('manifest', MANIFESTS)
def test_every_weight_of_the_release_is_used(manifest: str, tmp_path) -> None:
    arch, attention = manifest.removeprefix('vars_').replace('rvt_', 'rvt-').split('_', 1)
    state_dict = parity.released_state_dict(manifest)
    with on_meta():
        backbone = VARS(arch, ATTENTIONS[attention])
    own = {name: value.numel() for name, value in backbone.state_dict().items()}
    theirs = {VARS.release.rename(name): value.numel() for name, value in state_dict.items()}
    unused = {name.rsplit('.', 1)[-1] if 'blocks' in name else name for name in theirs if name not in own}
    # The classifier's, and what the release computes from its other parameters or never reads.
    assert unused <= {'fc_norm.weight', 'fc_norm.bias', 'head.weight', 'head.bias', 'L', 'kernel_norm'}
    assert own == {name: number for name, number in theirs.items() if name in own}
    # The names of this package's files stay.
    assert all(VARS.release.rename(name) == name for name in own)


@pytest.mark.parametrize(
    ('arch', 'millions'), [('rvt-tiny', 9.2), ('deit-tiny', 5.8), ('gfnet-tiny', 10.4)], ids=lambda value: str(value)
)
def test_size_is_the_one_of_the_paper(arch: str, millions: float) -> None:
    """With the classifier and, as the paper counts, the fixed random projections."""
    with on_meta():
        backbone = VARS(arch, 'vars_sd')
    channels = backbone.out_channels[-1]
    fixed = sum(buffer.numel() for name, buffer in backbone.named_buffers() if name.endswith('projection'))
    parameters = sum(p.numel() for p in backbone.parameters()) + fixed + 1000 * (channels + 1) + 2 * channels
    assert parameters / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize(('arch', 'millions'), [('rvt-tiny', '9.2'), ('deit-tiny', '6.8')])
def test_with_three_kernels_the_size_is_the_one_of_the_paper(arch: str, millions: str) -> None:
    with on_meta():
        backbone = VARS(arch, 'vars_s', num_kernels=3, out_indices=(11,), out_type='avg_featmap')
    parameters = sum(p.numel() for p in backbone.parameters()) + 1000 * (backbone.out_channels[-1] + 1)
    assert f'{parameters / 1e6:.1f}' == millions


def test_number_of_steps_and_sparsity() -> None:
    image = torch.randn(1, 3, 64, 96)
    backbone = VARS(SMALL, 'vars_d').eval()
    weights = backbone.state_dict()
    for options in (dict(num_steps=5), dict(sparsity=0.1)):
        other = VARS(SMALL, 'vars_d', **options).eval()
        other.load_state_dict(weights)
        assert not torch.allclose(other(image)[0], backbone(image)[0])
    for options in (dict(num_steps=3), dict(sparsity=0.3)):
        other = VARS(SMALL, 'vars_d', **options).eval()
        other.load_state_dict(weights)
        torch.testing.assert_close(other(image), backbone(image))
    assert VARS(SMALL, 'vars_s').blocks[0].attn.sparsity == 0.3  # the paper's, not the release's 3.5


@pytest.mark.parametrize(('attention', 'usual', 'other'), [('vars_s', 'soft', 'gelu'), ('vars_d', 'gelu', 'soft')])
@torch.no_grad()
def test_threshold(attention: str, usual: str, other: str) -> None:
    backbones = [VARS(SMALL, attention, threshold=name, sparsity=0.1).eval() for name in (None, usual, other)]
    for backbone in backbones[1:]:
        backbone.load_state_dict(backbones[0].state_dict())
    image = torch.randn(1, 3, 64, 96)
    default, same, different = (backbone(image)[0] for backbone in backbones)
    torch.testing.assert_close(same, default)
    assert not torch.allclose(different, default, rtol=1e-3)


@pytest.mark.parametrize('block', ['rvt', 'deit', 'gfnet'])
@pytest.mark.parametrize(
    'attention',
    [
        'vars_s',
        'vars_d',
        'vars_sd',
        dict(type='bioattn_mm.ConvolutionalSparseReconstruction', with_mixing=False, num_kernels=1),
        dict(type='bioattn_mm.IstaReconstructionAttention', static_grid=None),
        dict(type='bioattn_mm.IstaReconstructionAttention'),
    ],
    ids=['s', 'd', 'sd', 's of gfnet', 'ista d', 'ista sd'],
)
def test_codes_and_gradients_are_not_zero(block: str, attention: str | dict) -> None:
    """In every block, at the start and after ten steps: with lambda = 3.5, VARS-S has no code that is not zero."""
    arch = dict(block=block, embed_dims=[192, 384], depths=[3, 1], num_heads=[6, 12], feature_ratio=2)
    backbone = VARS(arch, attention, pretrain_size=96)
    optimizer = torch.optim.AdamW(backbone.parameters(), 1e-3)
    images = real_picture(96)
    for step in range(11):
        optimizer.zero_grad()
        features = backbone(images)[-1].mean((2, 3))
        F.cross_entropy(features, torch.arange(len(images))).backward()
        if step in (0, 10):
            backbone.eval()
            for recording in record_attention(backbone, images):
                codes = recording.layer.recurrent_states(*recording.inputs)[1][-1]
                assert codes.isfinite().all() and (codes != 0).float().mean() > 0.01, recording.name
            backbone.train()
            for name, parameter in backbone.named_parameters():
                assert parameter.grad.isfinite().all() and parameter.grad.any(), name
        optimizer.step()


@HOSTS
@pytest.mark.parametrize('dictionary', [dict(static_grid=None), {}], ids=['dynamic', 'and static'])
def test_layer_of_an_ablation(arch: dict, dictionary: dict) -> None:
    attention = dict(type='bioattn_mm.IstaReconstructionAttention', **dictionary)
    backbone = VARS(arch, attention, num_steps=0, sparsity=0.0)
    for block, stride in zip(backbone.blocks, backbone.stage_strides, strict=True):
        assert (block.attn.num_steps, block.attn.sparsity) == (0, 0.0)
        assert block.attn.static_grid == (None if dictionary else (224 // stride,) * 2)
    sum(output.square().sum() for output in backbone(torch.randn(2, 3, 33, 47))).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in backbone.parameters())


def test_pooling_is_frozen_with_the_block_after_it() -> None:
    for last in (9, 10):
        pool = VARS(SMALL, frozen_stages=last).train().pool
        assert all(module.training == (last == 9) for module in pool.modules())
        assert all(parameter.requires_grad == (last == 9) for parameter in pool.parameters())


@torch.no_grad()
def test_pretraining_size_is_the_grid_of_the_static_dictionaries() -> None:
    backbone = VARS(SMALL, 'vars_sd', pretrain_size=(100, 160))
    assert [backbone.blocks[index].attn.static_grid for index in (0, 11)] == [(7, 10), (4, 5)]
    backbone = VARS(SMALL, 'vars_s', pretrain_size=(100, 160))
    assert [backbone.blocks[index].attn.grid for index in (0, 11)] == [(7, 10), (4, 5)]
    assert backbone.eval()(torch.randn(1, 3, 100, 160))[1].shape == (1, 16, 4, 5)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(arch={**SMALL, 'block': 'swin'}), "block of arch must be one of rvt, deit, gfnet, got 'swin'"),
        (dict(arch={**SMALL, 'depths': [12]}), 'embed_dims, depths and num_heads of arch must be lists of one or'),
        (
            dict(arch={**SMALL, 'num_heads': [3, 4]}, attention='vars_d'),
            'embed_dims must be a multiple of num_heads, got 8 and 3',
        ),
        (dict(attention='vars'), 'attention must be one of vars_s, vars_d, vars_sd, performer, softmax'),
        (dict(num_steps=0), 'num_steps must be at least 1, got 0'),
        (dict(threshold='hard'), "threshold must be one of soft, gelu, got 'hard'"),
        (dict(attention=dict(type='bioattn_mm.Vars')), "the type of a layer must be .*, got 'bioattn_mm.Vars'"),
        (dict(sparsity=-0.1), 'sparsity must not be negative, got -0.1'),
    ],
)
def test_arguments_that_are_wrong(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        VARS(**{'arch': SMALL, **options})
