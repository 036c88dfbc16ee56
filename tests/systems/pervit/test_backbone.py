"""PerViT: the recorded vectors, any input size, initial values, checkpoints, and OpenMMLab's switches."""

import pytest
import torch
from timm.models import VisionTransformer
from torch import Tensor, nn

from bioattn_mm.systems.pervit import PerViT
from tests.systems.common.small_backbones import CASES, DEIT, PERVIT

SMALL = CASES['PerViT'].arch


@pytest.mark.parametrize(
    ('options', 'depths'),
    [
        (dict(position_init='peripheral'), torch.linspace(0, 1, 12)),
        (dict(position_init='conv'), torch.zeros(12)),
        (PERVIT['Euc'], torch.linspace(0, 1, 12)),
    ],
    ids=['peripheral', 'conv', 'of a single layer'],
)
@torch.no_grad()
def test_initial_position_is_local_first(options: dict, depths: Tensor) -> None:
    """Eq. 9: the last norm's initial values make the first block local and, but for 'conv', the last one global."""
    backbone = PerViT(SMALL, **options)
    assert (backbone.distance_embedding.proj.weight == -0.02).all()
    for depth, block in zip(depths, backbone.blocks, strict=True):
        layers = list(block.attn.position.modules())
        assert all((layer.weight == 0.02).all() for layer in layers if isinstance(layer, nn.Conv2d))
        norm = [layer for layer in layers if isinstance(layer, nn.GroupNorm)][-1]
        torch.testing.assert_close(norm.weight, (3 - 2.99 * depth).expand_as(norm.weight))
        torch.testing.assert_close(norm.bias, (9 * depth - 5).expand_as(norm.bias))
    of_centre = backbone.blocks[0].attn.position_bias((9, 9), backbone.distance_embedding)[:, 40].exp()
    assert (of_centre[:, 40] == 1).all() and (of_centre[:, 41] < 1).all() and (of_centre[:, 0] < 0.1).all()


def test_random_initialisation_of_every_parameter() -> None:
    """w_r, both projections and both norms (PerViT, table 5, 'Rand')."""
    backbone = PerViT(SMALL, position_init='random')
    positions = [dict(block.attn.position.named_parameters()) for block in backbone.blocks]
    for value in (backbone.distance_embedding.proj.weight, *(v for each in positions for v in each.values())):
        assert value.unique().numel() == value.numel()

    def of_all(name: str) -> Tensor:
        return torch.cat([each[name] for each in positions])

    for name, low, high in (('norm2.bias', -5, 4), ('norm2.weight', 0.01, 3)):
        values = of_all(name)
        assert low <= values.min() < values.max() <= high and values.std() > 0.1 * (high - low)
    for name, mean in (('norm1.weight', 1), ('norm1.bias', 0)):
        values = of_all(name)
        assert (values.mean().item(), values.std().item()) == pytest.approx((mean, 0.02), abs=0.005)


def test_memory_of_the_cache_is_shared_out_among_the_blocks() -> None:
    caches = {block.attn._position_biases.max_bytes for block in PerViT(SMALL, cache_mebibytes=1).blocks}
    assert caches == {2**20 // 12}


@torch.no_grad()
def test_blocks_without_position_leave_the_others_as_they_start() -> None:
    whole = PerViT(SMALL)
    part = PerViT(SMALL, **PERVIT['Phi_c alone in the first two blocks'])
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
    names = {name: name.replace('patch_embed.proj.', 'stem.') for name in theirs.state_dict()}
    names['pos_embed'] = 'pos_embed.weight'
    backbone.load_state_dict({names[name]: value for name, value in theirs.state_dict().items()})
    image = torch.randn(2, 3, 224, 224)
    torch.testing.assert_close(backbone(image)[0], theirs(image), rtol=1e-4, atol=1e-5)
