"""VARS: the recorded vectors, the hosts, any input size, and OpenMMLab's switches."""

import pytest
import torch
import torch.nn.functional as F

from bioattn_mm.analysis.attention_recorder import record_attention
from bioattn_mm.systems.vars import VARS
from bioattn_mm.systems.vars.attention import THRESHOLDS
from tests.systems.common.small_backbones import RVT
from tests.systems.real_picture import real_picture

ISTA = dict(type='bioattn_mm.IstaReconstructionAttention')
OF_GFNET = dict(type='bioattn_mm.ConvolutionalSparseReconstruction', with_mixing=False, num_kernels=1)


@pytest.mark.parametrize(
    'attention', ['vars_s', 'vars_d', 'vars_sd', OF_GFNET, ISTA, ISTA | dict(static_grid=None)], ids=str
)
def test_codes_and_gradients_are_not_zero(attention: str | dict) -> None:
    """In every block, at the start and after ten steps: with lambda = 3.5, VARS-S has no code that is not zero."""
    arch = dict(block='rvt', embed_dims=[192, 384], depths=[3, 1], num_heads=[6, 12], feature_ratio=2)
    backbone = VARS(arch, attention, pretrain_size=96)
    optimizer = torch.optim.AdamW(backbone.parameters(), 1e-3)
    images = real_picture(96)
    for step in range(11):
        optimizer.zero_grad()
        features = backbone(images)[-1].mean((2, 3))
        F.cross_entropy(features, torch.arange(len(images))).backward()
        if step in (0, 10):
            for recording in record_attention(backbone.eval(), images):
                codes = recording.layer.recurrent_states(*recording.inputs)[1][-1]
                assert codes.isfinite().all() and (codes != 0).float().mean() > 0.01, recording.name
            for name, parameter in backbone.train().named_parameters():
                assert parameter.grad.isfinite().all() and parameter.grad.any(), name
        optimizer.step()


@pytest.mark.parametrize(
    ('attention', 'options', 'expected'),
    [
        ('vars_s', {}, (3, 0.3, 'soft')),
        ('vars_d', {}, (3, 0.3, 'gelu')),
        ('vars_d', dict(num_steps=5, sparsity=0.1, threshold='soft'), (5, 0.1, 'soft')),
        ('vars_s', dict(threshold='gelu'), (3, 0.3, 'gelu')),
        (ISTA, {}, (3, 2.0, 'soft')),
        (ISTA | dict(static_grid=None), dict(num_steps=0, sparsity=0.0), (0, 0.0, 'soft')),
    ],
    ids=str,
)
def test_arguments_reach_every_layer(attention: str | dict, options: dict, expected: tuple) -> None:
    """Those that are not given are the paper's, and not the release's, whose lambda of VARS-S is 3.5."""
    backbone = VARS(RVT, attention, **options)
    for block, stride in zip(backbone.blocks, backbone.stage_strides, strict=True):
        layer = block.attn
        assert (layer.num_steps, layer.sparsity, layer.threshold) == (*expected[:2], THRESHOLDS[expected[2]])
        if isinstance(attention, dict):
            assert layer.static_grid == (None if 'static_grid' in attention else (224 // stride,) * 2)


def test_pooling_is_frozen_with_the_block_after_it() -> None:
    for last in (9, 10):
        pool = VARS(RVT, frozen_stages=last).train().pool
        assert all(module.training == (last == 9) for module in pool.modules())
        assert all(parameter.requires_grad == (last == 9) for parameter in pool.parameters())


@torch.no_grad()
@pytest.mark.parametrize(('attention', 'name'), [('vars_sd', 'static_grid'), ('vars_s', 'grid')])
def test_pretraining_size_is_the_grid_of_the_static_dictionaries(attention: str, name: str) -> None:
    backbone = VARS(RVT, attention, pretrain_size=(100, 160)).eval()
    assert [getattr(backbone.blocks[index].attn, name) for index in (0, 11)] == [(7, 10), (4, 5)]
    assert backbone(torch.randn(1, 3, 100, 160))[1].shape == (1, 16, 4, 5)
