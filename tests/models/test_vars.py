"""VARS: the recorded vectors, the hosts, any input size, and OpenMMLab's switches."""

import numpy as np
import pytest
import torch

from bioattn_mm.errors import InputError
from bioattn_mm.models import VARS
from bioattn_mm.run_config.model_check import OnMeta
from tests import parity

MANIFESTS = sorted(path.stem.removeprefix('manifest_') for path in parity.FOLDER.glob('manifest_vars_*.json'))
# The release's names of attentions -> names here.
ATTENTIONS = {
    'self-att': 'softmax',
    'perf': 'performer',
    'vars_s': 'vars_s',
    'vars_d': 'vars_d',
    'vars_sd': 'vars_sd',
}
KINDS = sorted([*ATTENTIONS.values(), 'global_filter'])
SMALL = dict(block='rvt', embed_dims=[8, 16], depths=[10, 2], num_heads=[2, 4], feature_ratio=2)
SMALL_DEIT = dict(block='deit', embed_dims=[8], depths=[12], num_heads=[2], feature_ratio=1)
SMALL_GFNET = dict(block='gfnet', embed_dims=[8], depths=[12], num_heads=[2], feature_ratio=2)
HOSTS = pytest.mark.parametrize('arch', [SMALL, SMALL_DEIT, SMALL_GFNET], ids=['rvt', 'deit', 'gfnet'])
ANY_ATTENTION = pytest.mark.parametrize('attention', KINDS)


def pretrained(path) -> dict:
    return dict(type='Pretrained', checkpoint=str(path))


def released(attention: str, path) -> VARS:
    """RVT-Ti with the weights of a file like the release's."""
    torch.save({'model': parity.released_state_dict(f'vars_rvt_tiny_{attention}')}, path)
    backbone = VARS('rvt-tiny', ATTENTIONS[attention], init_cfg=pretrained(path))
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
    with torch.device('meta'), OnMeta():
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
    with torch.device('meta'):
        backbone = VARS(arch, 'vars_sd')
    channels = backbone.out_channels[-1]
    fixed = sum(buffer.numel() for name, buffer in backbone.named_buffers() if name.endswith('projection'))
    parameters = sum(p.numel() for p in backbone.parameters()) + fixed + 1000 * (channels + 1) + 2 * channels
    assert parameters / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize(('arch', 'millions'), [('rvt-tiny', '9.2'), ('deit-tiny', '6.8')])
def test_with_three_kernels_the_size_is_the_one_of_the_paper(arch: str, millions: str) -> None:
    with torch.device('meta'):
        backbone = VARS(arch, 'vars_s', num_kernels=3, out_indices=(11,), out_type='avg_featmap')
    parameters = sum(p.numel() for p in backbone.parameters()) + 1000 * (backbone.out_channels[-1] + 1)
    assert f'{parameters / 1e6:.1f}' == millions


@ANY_ATTENTION
@HOSTS
@pytest.mark.parametrize('size', [(32, 32), (33, 47), (97, 161)])
def test_any_input_size(arch: dict, attention: str, size: tuple[int, int]) -> None:
    backbone = VARS(arch, attention, sparsity=0.01)
    outputs = backbone(torch.randn(2, 3, *size))
    strides = (16, 32) if arch is SMALL else (16,) * 4
    assert backbone.out_channels == ((8, 16) if arch is SMALL else (8,) * 4)
    for output, channels, stride in zip(outputs, backbone.out_channels, strides, strict=True):
        assert output.shape == (2, channels, -(-size[0] // stride), -(-size[1] // stride))
        assert output.isfinite().all()
    sum(output.square().sum() for output in outputs).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in backbone.parameters())


@ANY_ATTENTION
@torch.no_grad()
def test_detection_size(attention: str) -> None:
    outputs = VARS(SMALL, attention).eval()(torch.randn(1, 3, 800, 1333))
    assert [output.shape for output in outputs] == [(1, 8, 50, 84), (1, 16, 25, 42)]


@HOSTS
@torch.no_grad()
def test_padding_is_at_the_bottom_and_right(arch: dict) -> None:
    backbone = VARS(arch).eval()
    image = torch.randn(1, 3, 60, 50)
    padded = torch.zeros(1, 3, 64, 64)
    padded[:, :, :60, :50] = image
    for a, b in zip(backbone(image), backbone(padded), strict=True):
        torch.testing.assert_close(a, b)


@HOSTS
@pytest.mark.parametrize('out_indices', [(3,), (9,), (2, 10)])
def test_blocks_that_no_output_needs_are_not_built(arch: dict, out_indices: tuple[int, ...], tmp_path) -> None:
    whole, part = VARS(arch).eval(), VARS(arch, out_indices=out_indices).eval()
    assert len(part.blocks) == max(out_indices) + 1
    assert hasattr(part, 'pool') == (arch is SMALL and max(out_indices) > 9)
    torch.save(whole.state_dict(), tmp_path / 'whole.pth')
    part.init_cfg = pretrained(tmp_path / 'whole.pth')
    part.init_weights()
    wanted = VARS(arch, out_indices=(*out_indices, 11)).eval()
    wanted.load_state_dict(whole.state_dict())
    image = torch.randn(1, 3, 48, 64)
    outputs = part(image)
    for a, b in zip(outputs, wanted(image)):
        torch.testing.assert_close(a, b)
    sum(output.sum() for output in outputs).backward()
    assert all(parameter.grad is not None for parameter in part.parameters())


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
    assert VARS(SMALL, 'vars_s').blocks[0].attn.sparsity == 3.5


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


@ANY_ATTENTION
def test_with_cp_gives_the_same_gradients(attention: str) -> None:
    image = torch.randn(2, 3, 64, 96)
    plain, recomputed = VARS(SMALL, attention), VARS(SMALL, attention, with_cp=True)
    recomputed.load_state_dict(plain.state_dict())
    for backbone in (plain, recomputed):
        sum(output.square().mean() for output in backbone(image)).backward()
    for a, b in zip(plain.parameters(), recomputed.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@ANY_ATTENTION
@HOSTS
def test_bfloat16_autocast(arch: dict, attention: str) -> None:
    image = torch.randn(1, 3, 64, 96)
    backbone = VARS(arch, attention).eval()
    exact = backbone(image)
    with torch.autocast('cpu', torch.bfloat16):
        outputs = backbone(image)
    for output, want in zip(outputs, exact, strict=True):
        assert (output.float() - want).abs().max() < 0.05 * want.abs().max()


@pytest.mark.parametrize(
    'attention',
    # vars_sd has both dictionaries.
    [pytest.param(name, marks=pytest.mark.every_config if name in ('vars_s', 'vars_d') else ()) for name in KINDS],
)
@pytest.mark.parametrize('backend', ['eager', pytest.param('aot_eager', marks=pytest.mark.every_compilation)])
def test_compiles_whole(attention: str, backend: str) -> None:
    torch.compiler.reset()
    backbone = VARS(SMALL, attention, out_indices=(0, 1)).eval()
    compiled = torch.compile(backbone, backend=backend, fullgraph=True, dynamic=True)  # one graph for all sizes
    for size in ((64, 96), (80, 48)):
        image = torch.randn(1, 3, *size)
        for a, b in zip(compiled(image), backbone(image), strict=True):
            torch.testing.assert_close(a, b)


def test_frozen_stages_stay_frozen_in_training() -> None:
    backbone = VARS(SMALL, frozen_stages=10, drop_path_rate=0.5).train()
    frozen = [backbone.stem, backbone.pool, *backbone.blocks[:11]]
    assert not any(parameter.requires_grad for module in frozen for parameter in module.parameters())
    assert not any(module.training for module in frozen)
    assert all(parameter.requires_grad for parameter in backbone.blocks[11].parameters())
    assert all(parameter.requires_grad for parameter in VARS(SMALL, frozen_stages=9).pool.parameters())
    deit = VARS(SMALL_DEIT, frozen_stages=0)
    assert not any(parameter.requires_grad for parameter in deit.pos_embed.parameters())


@torch.no_grad()
def test_pretraining_size_is_the_grid_of_the_static_dictionaries() -> None:
    backbone = VARS(SMALL, 'vars_sd', pretrain_size=(100, 160))
    assert [backbone.blocks[index].attn.static_grid for index in (0, 11)] == [(7, 10), (4, 5)]
    backbone = VARS(SMALL, 'vars_s', pretrain_size=(100, 160))
    assert [backbone.blocks[index].attn.grid for index in (0, 11)] == [(7, 10), (4, 5)]
    assert backbone.eval()(torch.randn(1, 3, 100, 160))[1].shape == (1, 16, 4, 5)


def test_checkpoint_of_another_attention(tmp_path) -> None:
    torch.save(VARS(SMALL, 'vars_d').state_dict(), tmp_path / 'vars_d.pth')
    backbone = VARS(SMALL, 'vars_sd', init_cfg=pretrained(tmp_path / 'vars_d.pth'))
    with pytest.raises(InputError, match='is not a checkpoint of this model; .* missing in the file: blocks.0.attn'):
        backbone.init_weights()


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(arch='huge'), 'arch must be one of rvt-tiny, rvt-small, deit-tiny, gfnet-tiny or a dict'),
        (dict(arch=dict(num_heads=2)), 'arch as a dict needs the keys block, depths, embed_dims'),
        (dict(arch={**SMALL, 'block': 'swin'}), "block of arch must be one of rvt, deit, gfnet, got 'swin'"),
        (dict(arch={**SMALL, 'depths': [12]}), 'embed_dims, depths and num_heads of arch must be lists of one or'),
        (
            dict(arch={**SMALL, 'embed_dims': [8, 12]}),
            'the second of embed_dims of arch must be a multiple of',
        ),
        (
            dict(arch={**SMALL, 'num_heads': [3, 4]}, attention='vars_d'),
            'embed_dims must be a multiple of num_heads, got 8 and 3',
        ),
        (dict(attention='vars'), 'attention must be one of vars_s, vars_d, vars_sd, performer, softmax'),
        (dict(num_steps=0), 'num_steps must be at least 1, got 0'),
        (dict(threshold='hard'), "threshold must be one of soft, gelu, got 'hard'"),
        (dict(attention=dict(type='bioattn_mm.Vars')), "the type of a layer must be .*, got 'bioattn_mm.Vars'"),
        (dict(sparsity=-0.1), 'sparsity must not be negative, got -0.1'),
        (dict(out_indices=(12,)), r'out_indices must be stages 0 to 11, got \(12,\)'),
        (dict(frozen_stages=12), 'frozen_stages must be -1 to 11, got 12'),
    ],
)
def test_arguments_that_are_wrong(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        VARS(**{'arch': SMALL, **options})
