"""TransNeXt: the recorded vectors, any input size, checkpoints, and OpenMMLab's switches."""

import pytest
import torch

from bioattn_mm.checkpoints.meta_models import on_meta
from bioattn_mm.errors import InputError
from bioattn_mm.systems.common.attention_maps import whole_attention
from bioattn_mm.systems.common.attention_recorder import record_attention
from bioattn_mm.systems.common.layout import as_map
from bioattn_mm.systems.transnext import TransNeXt
from tests import parity

SMALL = dict(embed_dims=(8, 16, 24, 32), num_heads=(1, 2, 3, 4), depths=(1, 1, 2, 1))
# Aggregated attention in all stages.
SMALL_AAAA = dict(**SMALL, sr_ratios=(16, 8, 4, 2))


def save_release(path, variant: str) -> str:
    """A file laid out like the authors' ImageNet release."""
    state_dict = parity.released_state_dict(f'transnext_{variant}')
    channels = state_dict['norm4.weight'].numel()
    head = {'head.weight': torch.zeros(1000, channels), 'head.bias': torch.zeros(1000)}
    torch.save({'model': {**state_dict, **head}, 'epoch': 299}, path)
    return str(path)


@pytest.mark.parametrize('name', parity.vectors('transnext'))
@torch.no_grad()
def test_matches_the_recorded_features(name: str, tmp_path) -> None:
    vector = parity.read_vector(name)
    backbone = TransNeXt(
        vector['variant'],
        bias_mode=vector['position_bias'].split()[0],
        img_size=vector['pretrain_size'],
        init_cfg=dict(type='Pretrained', checkpoint=save_release(tmp_path / 'release.pth', vector['variant'])),
    )
    backbone.init_weights()
    parity.check_features(backbone.eval(), name)


@pytest.mark.parametrize('variant', ['micro', 'tiny', 'small', 'base', 'micro-aaaa'])
def test_parameters_are_those_of_the_release(variant: str) -> None:
    released = parity.released_state_dict(f'transnext_{variant.replace("-aaaa", "_AAAA")}')
    released = {name: value for name, value in released.items() if not name.startswith('head.')}
    with on_meta():
        backbone = TransNeXt(variant)
    assert sum(p.numel() for p in backbone.parameters()) == sum(value.numel() for value in released.values())


@pytest.mark.parametrize('size', [(32, 32), (33, 47), (32, 200), (97, 161), (224, 320)])
@pytest.mark.parametrize(
    'options',
    [dict(), dict(bias_mode='interpolate', img_size=64), dict(pool_size=7), dict(pool_size=(2, 3))],
    ids=['extrapolate', 'interpolate', 'linear', 'linear non-square'],
)
@pytest.mark.parametrize('arch', [SMALL, SMALL_AAAA], ids=['A-A-A-M', 'A-A-A-A'])
def test_any_input_size(arch: dict, size: tuple[int, int], options: dict) -> None:
    backbone = TransNeXt(arch, **options)
    outputs = backbone(torch.randn(2, 3, *size))
    for output, channels, stride in zip(outputs, backbone.out_channels, (4, 8, 16, 32), strict=True):
        assert output.shape == (2, channels, -(-size[0] // stride), -(-size[1] // stride))
        assert output.isfinite().all()
    sum(output.sum() for output in outputs).backward()
    # The last stage of a 32-pixel image is one token: its softmax has no gradient.
    assert all(p.grad is not None and p.grad.isfinite().all() for p in backbone.parameters())


def test_gradient_of_features_keeps_the_layout_of_tokens() -> None:
    x = torch.randn(2, 5, 3, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    output, weights = as_map(x.permute(0, 2, 3, 1), (3, 4)), torch.randn(2, 5, 3, 4)
    assert output.is_contiguous() and torch.equal(output, x)
    (grad,) = torch.autograd.grad(output, x, weights)
    assert grad.is_contiguous(memory_format=torch.channels_last) and torch.equal(grad, weights)


def test_linear_mode_keeps_the_pooled_grid() -> None:
    backbone = TransNeXt(SMALL, pool_size=7)
    for stage in backbone.stages[:3]:
        assert stage.blocks[0].attn.pooled_grid((200, 334)) == (7, 7)


def test_pooled_grids_of_aggregated_attention_in_all_stages() -> None:
    backbone, linear = TransNeXt(SMALL_AAAA), TransNeXt(SMALL_AAAA, pool_size=(4, 5))
    for stage, linear_stage, grid in zip(backbone.stages, linear.stages, [(8, 50), (4, 25), (2, 13), (1, 7)]):
        # 1/64 of 32 x 200 pixels, and nowhere without a token.
        assert stage.blocks[0].attn.pooled_grid(grid) == (1, 3)
        assert linear_stage.blocks[0].attn.pooled_grid(grid) == (4, 5)


def test_unit_of_the_coordinates_is_the_size_of_the_release() -> None:
    def grids(**options) -> list[tuple[int, int]]:
        with on_meta():
            backbone = TransNeXt(**options)
        return [stage.blocks[0].attn.position_bias.pretrain_grid for stage in backbone.stages]

    assert grids(arch=SMALL) == [(56, 56), (28, 28), (14, 14), (7, 7)]
    assert grids(arch='micro-aaaa') == [(64, 64), (32, 32), (16, 16), (8, 8)]
    assert grids(arch=SMALL_AAAA, pretrain_size=384) == [(96, 96), (48, 48), (24, 24), (12, 12)]


def test_interpolation_starts_from_the_grid_of_a_classifier() -> None:
    def grids(**options) -> list[tuple]:
        with on_meta():
            backbone = TransNeXt(bias_mode='interpolate', **options)
        biases = [stage.blocks[0].attn.position_bias for stage in backbone.stages]
        return [(bias.train_grid[0], bias.train_pooled_grid[0]) for bias in biases]

    assert grids(arch=SMALL) == [(56, 7), (28, 7), (14, 7), (7, 7)]
    assert grids(arch=SMALL, img_size=384) == [(96, 12), (48, 12), (24, 12), (12, 12)]
    assert grids(arch='micro-aaaa') == [(64, 4), (32, 4), (16, 4), (8, 4)]


@pytest.mark.parametrize('arch', [SMALL, SMALL_AAAA], ids=['A-A-A-M', 'A-A-A-A'])
@torch.no_grad()
def test_interpolation_equals_extrapolation_at_the_training_size(arch: dict) -> None:
    image = torch.randn(1, 3, 96, 160)
    extrapolate = TransNeXt(arch).eval()
    interpolate = TransNeXt(arch, bias_mode='interpolate', img_size=(96, 160)).eval()
    interpolate.load_state_dict(extrapolate.state_dict())
    for a, b in zip(extrapolate(image), interpolate(image), strict=True):
        torch.testing.assert_close(a, b)
    bigger = torch.randn(1, 3, 160, 256)
    assert not torch.allclose(extrapolate(bigger)[0], interpolate(bigger)[0], atol=1e-6)


TO_ALL = dict(type='bioattn_mm.LengthScaledAttention')
COMPOSITIONS = dict(
    all_tokens=dict(token_mixers=TO_ALL),
    pixel_focused=dict(token_mixers=[*[dict(type='bioattn_mm.PixelFocusedAttention')] * 3, {}]),
    windows=dict(window_size=(3, 5, 7, 3)),
    no_embedding=dict(token_mixers=dict(scale=dict(type='bioattn_mm.CosineQueryWithoutEmbedding'))),
    no_bias=dict(position_bias=dict(type='bioattn_mm.NoPositionBias')),
    learned_bias=dict(position_bias=dict(type='bioattn_mm.RelativePositionBias')),
    learned_bias_of_all=dict(position_bias=dict(type='bioattn_mm.RelativePositionBias'), token_mixers=TO_ALL),
    glu=dict(channel_mixer=dict(type='bioattn_mm.GLU')),
    type_2=dict(channel_mixer=dict(type='bioattn_mm.OtherConvGLU', design=2)),
    bias_of_both=dict(position_bias=dict(type='bioattn_mm.LogCPBOfBothPaths')),
    dynamic_bias=dict(token_mixers=[*[dict(type='bioattn_mm.DynamicBiasAttention')] * 3, {}]),
    reduction=dict(token_mixers=dict(type='bioattn_mm.SpatialReductionAttention')),
    unscaled=TransNeXt.position_bias_settings('unscaled', 64),
)


@pytest.mark.parametrize('bias_mode', ['extrapolate', 'interpolate'])
@pytest.mark.parametrize('name', COMPOSITIONS)
def test_every_composition_at_any_size(name: str, bias_mode: str) -> None:
    options = dict(bias_mode=bias_mode, img_size=64, pretrain_size=64) | COMPOSITIONS[name]
    backbone = TransNeXt(SMALL, **options)
    outputs = backbone(torch.randn(1, 3, 97, 70))
    for output, channels, stride in zip(outputs, backbone.out_channels, (4, 8, 16, 32), strict=True):
        assert output.shape == (1, channels, -(-97 // stride), -(-70 // stride))
        assert output.isfinite().all()
    sum(output.square().sum() for output in outputs).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in backbone.parameters())


@pytest.mark.parametrize('name', [name for name in COMPOSITIONS if name != 'reduction'])
@torch.no_grad()
def test_attention_of_every_composition_can_be_looked_at(name: str) -> None:
    backbone = TransNeXt(SMALL, **COMPOSITIONS[name]).eval()
    recordings = record_attention(backbone, torch.randn(1, 3, 64, 96))
    assert len(recordings) == 5
    for recording in recordings:
        whole = whole_attention(recording.maps(torch.tensor([0, 5])))
        weights = sum(part.weights.sum((-2, -1)) for part in whole)
        torch.testing.assert_close(weights, torch.ones_like(weights))


def test_parts_are_composed_by_stage() -> None:
    def kinds(part: str, **options: object) -> list[str]:
        backbone = TransNeXt(SMALL, **options)
        return [type(stage.blocks[0].get_submodule(part)).__name__ for stage in backbone.stages]

    own = ['AggregatedAttention'] * 3 + ['LengthScaledAttention']
    assert kinds('attn') == own
    assert kinds('attn', **COMPOSITIONS['pixel_focused']) == ['PixelFocusedAttention'] * 3 + ['LengthScaledAttention']
    assert kinds('attn', **COMPOSITIONS['no_embedding']) == own
    assert kinds('attn.scale', **COMPOSITIONS['no_embedding']) == ['CosineQueryWithoutEmbedding'] * 4
    assert kinds('attn.position_bias', **COMPOSITIONS['no_bias']) == ['NoPositionBias'] * 4
    assert kinds('mlp', **COMPOSITIONS['glu']) == ['GLU'] * 4
    windows = TransNeXt(SMALL_AAAA, window_size=(3, 5, 7, 9)).stages
    assert [stage.blocks[0].attn.window_size for stage in windows] == [3, 5, 7, 9]
    # The class itself, also one that is in no registry.
    assert kinds('mlp', channel_mixer=dict(type=WithoutMixing)) == ['WithoutMixing'] * 4
    # A grid to itself, where tokens attend to all tokens.
    bias = TransNeXt(SMALL, **COMPOSITIONS['learned_bias_of_all']).stages[0].blocks[0].attn.position_bias
    assert bias.offsets.shape == (1, 111, 111)
    biases = TransNeXt(SMALL, **COMPOSITIONS['learned_bias']).stages
    # Offsets of two of 7 x 7 cells in every stage.
    assert [stage.blocks[0].attn.position_bias.offsets.shape[1:] for stage in biases] == [(13, 13)] * 4


class WithoutMixing(torch.nn.Module):
    """A channel mixer that needs to know nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_says_which_keys_were_not_used(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = []
    monkeypatch.setattr('bioattn_mm.systems.common.backbone.print_log', lambda line, logger: lines.append(line))
    path = save_release(tmp_path / 'release.pth', 'micro')
    backbone = TransNeXt('micro', init_cfg=dict(type='Pretrained', checkpoint=path))
    backbone.init_weights()
    number = len(backbone.state_dict())
    assert lines == [f'TransNeXt: loaded {path}; {number} entries used, not used: head.weight, head.bias']


@pytest.mark.parametrize(
    'wrapping', ['bare', 'state_dict of a detector', 'data parallel', 'compiled', 'averaged', 'averaged alone']
)
def test_loads_checkpoints_of_this_package(wrapping: str, tmp_path, caplog) -> None:
    source = TransNeXt(SMALL)
    state_dict = source.state_dict()
    if wrapping == 'state_dict of a detector':
        heads = {'decode_head.conv_seg.weight': torch.zeros(3)}
        state_dict = {'state_dict': {**{f'backbone.{k}': v for k, v in state_dict.items()}, **heads}}
    elif wrapping == 'data parallel':
        state_dict = {f'module.{k}': v for k, v in state_dict.items()}
    elif wrapping == 'compiled':
        state_dict = {f'_orig_mod.module._orig_mod.{k}': v for k, v in state_dict.items()}
    elif wrapping.startswith('averaged'):
        plain = {k: v + 1 for k, v in state_dict.items()}
        state_dict = (
            dict(state_dict=plain, state_dict_ema=state_dict) if wrapping == 'averaged' else dict(ema=state_dict)
        )
    torch.save(state_dict, tmp_path / 'own.pth')
    backbone = TransNeXt(SMALL, init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'own.pth')))
    backbone.init_weights()
    for name, value in source.state_dict().items():
        torch.testing.assert_close(backbone.state_dict()[name], value, rtol=0, atol=0)
    says = 'own.pth has weights as state_dict_ema and state_dict: state_dict_ema are taken'
    assert (says in caplog.text) == (wrapping == 'averaged')


def test_checkpoint_of_another_variant(tmp_path) -> None:
    path = save_release(tmp_path / 'release.pth', 'micro')
    backbone = TransNeXt('tiny', init_cfg=dict(type='Pretrained', checkpoint=path))
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    shape = r'stages.0.patch_embed.proj.weight \(file \(48, 3, 7, 7\), model \(72, 3, 7, 7\)\)'
    with pytest.raises(InputError, match=shape):
        backbone.init_weights()
    for name, value in backbone.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def test_checkpoint_of_another_system(tmp_path) -> None:
    torch.save({'layer1.0.conv1.weight': torch.zeros(3)}, tmp_path / 'resnet.pth')
    backbone = TransNeXt(SMALL, init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'resnet.pth')))
    with pytest.raises(InputError, match='missing in the file: .*unknown to the model: layer1.0.conv1.weight'):
        backbone.init_weights()


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (None, 'checkpoint not found'),
        (b'no checkpoint', 'cannot read the checkpoint'),
        ([1, 2], 'holds no weights: .*got list'),
        ({'epoch': 3}, 'holds no weights'),
    ],
)
def test_files_that_are_no_checkpoints(content, message: str, tmp_path) -> None:
    path = tmp_path / 'file.pth'
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(InputError, match=message):
        TransNeXt(SMALL, init_cfg=dict(type='Pretrained', checkpoint=str(path))).init_weights()


def test_checkpoint_that_cannot_be_downloaded() -> None:
    # Nothing listens on this port.
    backbone = TransNeXt(SMALL, init_cfg=dict(type='Pretrained', checkpoint='http://127.0.0.1:9/file.pth'))
    with pytest.raises(InputError, match='cannot read the checkpoint http.*; download it by hand'):
        backbone.init_weights()


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(arch={**SMALL, 'depths': (1, 1)}), r'depths of arch needs 4 values, got \(1, 1\)'),
        (dict(arch={**SMALL, 'sr_ratios': (8, 4)}), r'sr_ratios of arch needs 4 values, got \(8, 4\)'),
        (
            dict(arch={**SMALL, 'num_heads': (3, 2, 3, 4)}),
            'embed_dims must be a multiple of num_heads, got 8 and 3',
        ),
        (dict(bias_mode='stretch'), 'bias_mode must be'),
        (dict(window_size=(3, 3)), r'window_size must be one int or 4 of them, got \(3, 3\)'),
        (dict(window_size=4), 'window_size must be odd and positive, got 4'),
        (dict(token_mixers=[{}]), r'token_mixers must be one dict or 4 of them, got \[\{\}\]'),
        (dict(token_mixers=dict(scale='none')), "settings of a layer must be a dict with its type, got 'none'"),
        (dict(channel_mixer=dict(type='bioattn_mm.Glu')), "a class or its name in the registry .* 'bioattn_mm.Glu'"),
    ],
)
def test_arguments_that_are_wrong(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransNeXt(**options)
