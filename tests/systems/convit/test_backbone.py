"""ConViT: the recorded vectors, timm's files, any input size, and OpenMMLab's switches."""

import pytest
import timm
import torch

from bioattn_mm.analysis.attention_recorder import record_attention
from bioattn_mm.errors import InputError
from bioattn_mm.systems.convit import ConViT
from tests import parity
from tests.systems.common.small_backbones import CASES, loaded

SMALL = CASES['ConViT'].arch


@pytest.mark.parametrize('name', parity.vectors('convit'))
@torch.no_grad()
def test_matches_the_recorded_features(name: str, tmp_path) -> None:
    vector = parity.read_vector(name)
    height, width = vector['image'][2:]
    state_dict = parity.released_state_dict(f'convit_{vector["variant"]}')
    if height != 224:  # a reference of its own size, whose embedding has that grid
        tokens = (height // 16) * (width // 16)
        state_dict['pos_embed'] = parity.fill_value('pos_embed', [1, tokens, state_dict['pos_embed'].shape[-1]])
    weights = {'model': state_dict}
    backbone = loaded(ConViT, weights, tmp_path, vector['variant'], pretrain_size=(height, width))
    parity.check_features(backbone, name)


@torch.no_grad()
def test_loads_the_weights_of_timm(tmp_path) -> None:
    host = timm.create_model('convit_tiny').eval()
    backbone = loaded(ConViT, host.state_dict(), tmp_path, 'tiny')
    image = torch.randn(1, 3, 224, 224)
    (last,) = backbone(image)[-1:]
    torch.testing.assert_close(last.flatten(2).transpose(1, 2), host.forward_features(image)[:, 1:])


def test_local_up_to_layer() -> None:
    backbone = ConViT(SMALL, local_up_to_layer=3)
    assert [hasattr(block.attn, 'gating_param') for block in backbone.blocks] == [True] * 3 + [False] * 9
    assert [output.shape for output in backbone(torch.randn(1, 3, 32, 48))] == [(1, 8, 2, 3)] * 4


def test_without_position_embedding() -> None:
    """The same as with an embedding of zeros."""
    backbone = ConViT(SMALL, pos_embed=False).eval()
    other = ConViT(SMALL).eval()
    other.load_state_dict({**backbone.state_dict(), 'pos_embed.weight': torch.zeros_like(other.pos_embed.weight)})
    x = torch.randn(1, 3, 33, 48)
    for own, wanted in zip(backbone(x), other(x), strict=True):
        torch.testing.assert_close(own, wanted)


def test_without_gpsa_the_class_token_comes_first() -> None:
    """Table 3, row e: DeiT."""
    deit = dict(local_up_to_layer=0, out_indices=(3, 11))
    assert [output.shape for output in ConViT(SMALL, **deit)(torch.randn(1, 3, 32, 48))] == [(1, 8, 2, 3)] * 2
    backbone = ConViT(SMALL, local_up_to_layer=0, out_indices=(11,), out_type='cls_token')
    assert backbone(torch.randn(2, 3, 32, 48))[0].shape == (2, 8)


def test_token_mixers_of_all_blocks_or_of_each() -> None:
    def kinds(**options: object) -> list[str]:
        return [type(block.attn).__name__ for block in ConViT(SMALL, local_up_to_layer=3, **options).blocks[:4]]

    ungated = dict(type='bioattn_mm.UngatedGPSA')
    assert kinds() == ['GPSA'] * 3 + ['Attention']
    assert kinds(token_mixers=ungated) == ['UngatedGPSA'] * 3 + ['Attention']
    others = ConViT(SMALL, local_up_to_layer=3, token_mixers=dict(type='bioattn_mm.SoftmaxAttention')).eval()
    for recording in record_attention(others, torch.randn(1, 3, 32, 48)):
        (attention,) = recording.maps(torch.tensor([0, 5])).values()
        assert attention.weights.shape[-2:] == (2, 3)
    each = [{}, ungated, dict(locality_strength=3.0)]
    assert kinds(token_mixers=each) == ['GPSA', 'UngatedGPSA', 'GPSA', 'Attention']


@pytest.mark.parametrize('frozen', [True, False])
def test_without_convolutional_initialisation(frozen: bool) -> None:
    """Table 3, rows c and g: initialised as the other linear layers are."""
    torch.manual_seed(0)
    token_mixers = dict(type='bioattn_mm.FrozenGPSA') if frozen else None
    backbone = ConViT('tiny', locality_strength=None, token_mixers=token_mixers)
    for name in ('v', 'pos_proj'):
        weights = torch.cat([getattr(block.attn, name).weight.detach().flatten() for block in backbone.blocks[:10]])
        assert weights.std() == pytest.approx(0.02, rel=0.2)
    trained = {name for name, parameter in backbone.named_parameters() if parameter.requires_grad}
    assert ('blocks.0.attn.v.weight' in trained) != frozen
    assert {'blocks.0.mlp.fc1.weight', 'blocks.0.norm1.weight', 'blocks.10.attn.qkv.weight'} <= trained
    assert not frozen or not any(name.startswith('blocks.9.attn.') for name in trained)


def test_the_class_token_is_frozen_with_the_first_block_that_has_it() -> None:
    assert [ConViT(SMALL, frozen_stages=last).cls_token.requires_grad for last in (9, 10)] == [True, False]


def test_starts_with_the_convolutional_initialisation() -> None:
    backbone = ConViT('tiny', locality_strength=2.0)
    attn = backbone.blocks[4].attn
    torch.testing.assert_close(attn.v.weight.detach(), torch.eye(192))
    wanted = 2 * torch.tensor([[-1.0, -1, -1], [-1, 1, -1], [1, -1, -1], [1, 1, -1]])
    torch.testing.assert_close(attn.pos_proj.weight.detach(), wanted)
    assert attn.gating_param.tolist() == [1, 1, 1, 1]


def test_checkpoint_of_another_pretraining_size(tmp_path) -> None:
    with pytest.raises(InputError, match=r'pos_embed.weight \(file \(1, 196, 8\), model \(1, 400, 8\)\)'):
        loaded(ConViT, ConViT(SMALL).state_dict(), tmp_path, SMALL, pretrain_size=320)
