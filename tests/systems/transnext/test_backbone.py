"""TransNeXt: the recorded vectors, any input size, checkpoints, and OpenMMLab's switches."""

import copy
import math
from pathlib import Path

import pytest
import torch

from bioattn_mm.checkpoints.meta_models import on_meta
from bioattn_mm.errors import InputError
from bioattn_mm.systems.common.layout import as_map
from bioattn_mm.systems.transnext import AggregatedAttention, LengthScaledAttention, TransNeXt
from bioattn_mm.systems.transnext.ablations import CosineQueryWithoutEmbedding
from tests.systems.common.small_backbones import CASES, TRANSNEXT, loaded

SMALL = CASES['TransNeXt'].arch
# Aggregated attention in all stages.
SMALL_AAAA = dict(**SMALL, sr_ratios=(16, 8, 4, 2))


def test_initial_values() -> None:
    """Those of the authors, but that the biases of patch embeddings are not 0."""
    for name, layer in TransNeXt('micro').named_modules():
        if isinstance(layer, torch.nn.Conv2d):
            std = math.sqrt(2 / (math.prod(layer.kernel_size) * layer.out_channels // layer.groups))
        elif isinstance(layer, torch.nn.Linear):
            std = 0.02
        else:
            continue
        assert layer.weight.std().item() == pytest.approx(std, rel=0.2), name
        of_bias = pytest.approx(0.02, rel=0.3) if name.endswith('patch_embed.proj') else 0
        assert layer.bias.std().item() == of_bias, name


def test_gradient_of_features_keeps_the_layout_of_tokens() -> None:
    x = torch.randn(2, 5, 3, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    output, weights = as_map(x.permute(0, 2, 3, 1), (3, 4)), torch.randn(2, 5, 3, 4)
    assert output.is_contiguous() and torch.equal(output, x)
    (grad,) = torch.autograd.grad(output, x, weights)
    assert grad.is_contiguous(memory_format=torch.channels_last) and torch.equal(grad, weights)


def test_grids_of_the_position_bias() -> None:
    """The unit of the coordinates, that of the release, and the grids of a classifier, which it is resized from."""
    for options, units, grids, pooled in (
        (dict(arch=SMALL, img_size=384), [56, 28, 14, 7], [96, 48, 24, 12], [12, 12, 12, 12]),
        (dict(arch='micro-aaaa'), [64, 32, 16, 8], [64, 32, 16, 8], [4, 4, 4, 4]),
        (dict(arch=SMALL_AAAA, pretrain_size=384), [96, 48, 24, 12], [96, 48, 24, 12], [6, 6, 6, 6]),
    ):
        with on_meta():
            stages = TransNeXt(bias_mode='interpolate', **options).stages
        for stage, *sides in zip(stages, units, grids, pooled, strict=True):
            bias = stage.blocks[0].attn.position_bias
            assert [bias.pretrain_grid, bias.train_grid, bias.train_pooled_grid] == [(side, side) for side in sides]


def test_linear_mode_pools_every_grid_to_that_of_training() -> None:
    for options, pool_size in (
        ({}, (7, 7)),
        (dict(arch='micro-aaaa'), (4, 4)),
        (dict(pretrain_size=448), (14, 14)),
        (dict(img_size=(384, 20), pretrain_size=448), (12, 1)),
        (dict(img_size=(511, 126)), (16, 4)),  # as the padded grids of 128 x 32 tokens are pooled
    ):
        settings = TransNeXt.position_bias_settings('linear', **options)
        assert settings == dict(bias_mode='extrapolate', pool_size=pool_size)
        stages = TransNeXt(SMALL_AAAA, **settings).stages
        assert [stage.blocks[0].attn.pooled_grid((8, 50)) for stage in stages] == [pool_size] * 4


def test_parts_are_composed_by_stage() -> None:
    def parts(name: str, **options: object) -> list[object]:
        return [stage.blocks[0].get_submodule(name) for stage in TransNeXt(**{'arch': SMALL, **options}).stages]

    own = [AggregatedAttention] * 3 + [LengthScaledAttention]
    assert [type(part) for part in parts('attn', **TRANSNEXT['no embedding'])] == own
    assert {type(part) for part in parts('attn.scale', **TRANSNEXT['no embedding'])} == {CosineQueryWithoutEmbedding}
    # The class itself, also one that is in no registry.
    assert {type(part) for part in parts('mlp', channel_mixer=dict(type=torch.nn.Identity))} == {torch.nn.Identity}
    windows = parts('attn', arch=SMALL_AAAA, window_size=(3, 5, 7, 9))
    assert [part.window_size for part in windows] == [3, 5, 7, 9]
    # A grid to itself, where tokens attend to all tokens; else offsets of two of 7 x 7 cells in every stage.
    for name, sides in (('learned bias of all', (111, 55, 27, 13)), ('learned bias', (13, 13, 13, 13))):
        biases = parts('attn.position_bias', **TRANSNEXT[name])
        assert [bias.offsets.shape[1:] for bias in biases] == [(side, side) for side in sides]


# What a file holds for weights, by what has written it.
FILES = {
    'weights alone': lambda weights: weights,
    'a detector': lambda weights: dict(
        state_dict={f'backbone.{k}': v for k, v in weights.items()} | {'decode_head.conv_seg.weight': torch.zeros(3)}
    ),
    'data parallel': lambda weights: {f'module.{k}': v for k, v in weights.items()},
    'compiled': lambda weights: {f'_orig_mod.module._orig_mod.{k}': v for k, v in weights.items()},
    'averaged': lambda weights: dict(state_dict={k: v + 1 for k, v in weights.items()}, state_dict_ema=dict(weights)),
    'averaged alone': lambda weights: dict(ema=weights),
}


@pytest.mark.parametrize('name', FILES)
def test_loads_checkpoints_of_this_package(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = TransNeXt(SMALL).state_dict()
    backbone = loaded(TransNeXt, FILES[name](weights), tmp_path, SMALL)
    torch.testing.assert_close(dict(backbone.state_dict()), dict(weights), rtol=0, atol=0)
    says = 'weights.pth has weights as state_dict_ema and state_dict: state_dict_ema are taken'
    assert (says in caplog.text) == (name == 'averaged')


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        ([1, 2], 'holds no weights: .*got list'),
        ({'epoch': 3}, 'holds no weights'),
        ({'layer1.weight': torch.zeros(3)}, 'missing in the file: .*unknown to the model: layer1.weig'),
        ({'patch_embed1.proj.weight': torch.zeros(9, 3, 7, 7)}, r'\(file \(9, 3, 7, 7\), model \(8, 3, 7, 7\)\)'),
        ('http://127.0.0.1:9/file.pth', 'cannot read the checkpoint http.*; download it by hand'),  # nothing listens
    ],
)
def test_what_is_no_checkpoint_of_the_model(content: object, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / 'file.pth')
    source = content if isinstance(content, str) else str(tmp_path / 'file.pth')
    backbone = TransNeXt(SMALL, init_cfg=dict(type='Pretrained', checkpoint=source))
    before = copy.deepcopy(backbone.state_dict())
    with pytest.raises(InputError, match=message):
        backbone.init_weights()
    torch.testing.assert_close(backbone.state_dict(), before, rtol=0, atol=0)
