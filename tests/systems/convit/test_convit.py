"""ConViT: GPSA, factorised into rows and columns, against the formula over all pairs of tokens; the backbone."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from bioattn_mm.analysis.attention_recorder import record_attention
from bioattn_mm.systems.convit import GPSA, ConViT, UngatedGPSA
from tests.systems.common.small_backbones import CASES
from tests.systems.layers import check_formula, randomized, split_heads, tokens

SMALL = CASES['ConViT'].arch


def written_out(layer: GPSA, x: Tensor) -> Tensor:
    """The attention weights of eq. 7, computed for all pairs of tokens: (B, heads, N, N)."""
    query, key = (split_heads(part) for part in layer.qk(x).chunk(2, -1))
    content = torch.softmax(query @ key.mT / math.sqrt(query.shape[-1]), dim=-1)
    position = torch.cartesian_prod(*map(torch.arange, x.shape[1:3])).reshape(-1, 2)
    dy, dx = (position - position[:, None]).double().unbind(-1)  # key - query
    relative = layer.pos_proj(torch.stack((dx, dy, dx**2 + dy**2), dim=-1))  # (N, N, heads)
    gate = torch.sigmoid(layer.gating_param)[:, None, None]
    weights = (1 - gate) * content + gate * torch.softmax(relative.permute(2, 0, 1), dim=-1)
    return weights / weights.sum(-1, keepdim=True)


def output_of(layer: GPSA, weights: Tensor, x: Tensor) -> Tensor:
    """Apply the weights of all pairs to the values."""
    return layer.proj((weights @ split_heads(layer.v(x))).transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize('grid', [(1, 1), (1, 5), (4, 4), (3, 7), (6, 2)], ids=str)
def test_equals_the_formula_in_values_and_gradients(grid: tuple[int, int]) -> None:
    layer, x = randomized(GPSA(12, 3)), tokens(grid)
    tolerances = dict(values=dict(rtol=0, atol=1e-12), gradients=dict(rtol=0, atol=1e-11))
    maps = layer.attention_maps(x, torch.arange(grid[0] * grid[1]))
    for output in (layer(x), output_of(layer, maps['attention'].weights.flatten(3), x)):
        dense = output_of(layer, written_out(layer, x), x)
        check_formula(output, dense, [x, *layer.parameters()], **tolerances)


@pytest.mark.parametrize(('num_heads', 'kernel_size'), [(4, 2), (9, 3), (16, 4), (5, 2)])
def test_starts_as_a_convolution(num_heads: int, kernel_size: int) -> None:
    """With the gate at 1 and a high locality, each head copies one neighbour in a K x K window."""
    channels = 2 * num_heads
    layer = GPSA(channels, num_heads, locality_strength=50.0)
    layer.gating_param.data.fill_(1e3)
    layer.proj.weight.data = torch.eye(channels)
    layer.proj.bias.data.zero_()
    x = torch.randn(1, 9, 8, channels)
    output = layer(x)
    centre = (kernel_size - 1) / 2
    inner = slice(3, 5)
    for column, row in itertools.product(range(kernel_size), repeat=2):
        head = slice(2 * (row + kernel_size * column), 2 * (row + kernel_size * column) + 2)
        # Offsets in windows of even size lie between tokens, which share the weight equally.
        rows, columns = ({math.floor(place - centre), math.ceil(place - centre)} for place in (row, column))
        neighbours = [x.roll((-y, -z), (1, 2))[:, inner, inner, head] for y, z in itertools.product(rows, columns)]
        torch.testing.assert_close(output[:, inner, inner, head], sum(neighbours) / len(neighbours))


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_half_precision_on_a_long_axis(dtype: torch.dtype) -> None:
    """Squares of offsets overflow in half precision: the positional softmax has to be computed in float32."""
    layer = GPSA(8, 4)
    x = torch.randn(1, 2, 400, 8)
    exact = layer(x)
    rounded = layer.to(dtype)(x.to(dtype))
    assert rounded.isfinite().all()
    assert (rounded.float() - exact).abs().max() < 0.03 * exact.abs().max()


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_maps_under_autocast(dtype: torch.dtype) -> None:
    layer, x, queries = randomized(GPSA(12, 3)).float(), torch.randn(2, 3, 5, 12), torch.tensor([14, 0, 7])
    with torch.autocast('cpu', dtype):
        maps = layer.attention_maps(x, queries)
    for name, exact in layer.attention_maps(x, queries).items():
        torch.testing.assert_close(maps[name].weights.float(), exact.weights, rtol=0.05, atol=0.01)


def test_ungated_gives_content_and_position_the_same_share() -> None:
    """Table 3, rows b and d: eq. 7 with a gate of 0 in every head, whatever is trained."""
    layer, x = UngatedGPSA(12, 3).double(), tokens((3, 4))
    assert 'gating_param' not in {**dict(layer.named_parameters()), **layer.state_dict()}
    assert layer.head_parameters() == dict(gate=[0.5] * 3)
    gated = GPSA(12, 3).double()
    gated.load_state_dict({**layer.state_dict(), 'gating_param': torch.zeros(3)})
    torch.testing.assert_close(layer(x), gated(x))
    weights = written_out(layer, x)
    maps = layer.attention_maps(x, torch.arange(12))
    halves = (maps['content'].weights + maps['position'].weights) / 2
    torch.testing.assert_close(weights, halves.flatten(3))
    torch.testing.assert_close(layer(x), output_of(layer, weights, x))


def test_without_position_embedding_it_is_as_with_zeros() -> None:
    """So is the mean of the tokens that are in the map, which the class token is not."""
    backbone = ConViT(SMALL, pos_embed=False, out_indices=(11,), out_type='avg_featmap').eval()
    other = ConViT(SMALL, out_indices=(11,)).eval()
    other.load_state_dict({**backbone.state_dict(), 'pos_embed.weight': torch.zeros_like(other.pos_embed.weight)})
    x = torch.randn(1, 3, 33, 48)
    torch.testing.assert_close(backbone(x)[0], other(x)[0].mean((2, 3)))


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
