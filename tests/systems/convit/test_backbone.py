"""ConViT: the recorded vectors, any input size, and OpenMMLab's switches."""

import pytest
import torch

from bioattn_mm.analysis.attention_recorder import record_attention
from bioattn_mm.systems.convit import ConViT
from tests.systems.common.small_backbones import CASES

SMALL = CASES['ConViT'].arch


def test_without_position_embedding_it_is_as_with_zeros() -> None:
    backbone, other = ConViT(SMALL, pos_embed=False).eval(), ConViT(SMALL).eval()
    other.load_state_dict({**backbone.state_dict(), 'pos_embed.weight': torch.zeros_like(other.pos_embed.weight)})
    x = torch.randn(1, 3, 33, 48)
    torch.testing.assert_close(backbone(x), other(x))


def test_without_gpsa_the_class_token_comes_first() -> None:
    """Table 3, row e: DeiT."""
    outputs = ConViT(SMALL, local_up_to_layer=0, out_indices=(3, 11), out_type='cls_token')(torch.randn(2, 3, 32, 48))
    assert [output.shape for output in outputs] == [(2, 8)] * 2


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
