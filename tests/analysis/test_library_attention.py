"""Attention of other libraries: weights and places that give the layers' own outputs, and what is left out."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmdet.models.backbones import swin as mmdet_swin
from mmpretrain.models import utils as mmpretrain_swin
from timm.models.swin_transformer import SwinTransformerBlock
from torch import Tensor, nn

from bioattn_mm.analysis.attention import attention_of
from bioattn_mm.analysis.attention_recorder import OtherRecording, record_attention
from bioattn_mm.analysis.images import PreparedImage
from bioattn_mm.analysis.models import TimmBackbone
from bioattn_mm.errors import InputError
from tests.systems.layers import randomized

CHANNELS, HEADS, WINDOW = 12, 3, 4


class Toy(nn.Module):
    """A backbone with one attention layer, without patch embedding: (B, C, H, W) to one map."""

    def __init__(self, layer: nn.Module, run: Callable[[nn.Module, Tensor], Tensor] = nn.Module.__call__) -> None:
        super().__init__()
        self.layer, self.run = layer, run

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.run(self.layer, x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),)


class Layer(nn.Module):
    """A layer that calls another one, or computes itself what `run` does with None: (B, H, W, C) to the same."""

    def __init__(self, run: Callable[[nn.Module | None, Tensor], Tensor], inner: nn.Module | None = None) -> None:
        super().__init__()
        self.run, self.inner = run, inner

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.inner, x)


def swin_of_openmmlab(kind: type[nn.Module], shift: int, **options: object) -> Toy:
    layer = kind(CHANNELS, HEADS, WINDOW, shift, **options)
    return Toy(randomized(layer), lambda layer, x: layer(x.flatten(1, 2), x.shape[1:3]).view(x.shape))


def swin_of_timm(shift: int) -> Toy:
    block = SwinTransformerBlock(CHANNELS, (64, 64), HEADS, window_size=WINDOW, shift_size=shift, dynamic_mask=True)
    block.norm1, block.mlp = nn.Identity(), nn.Identity()
    # The block's attention without the rest; the map goes through a module, as it does through the block.
    return Toy(Layer(lambda block, x: block._attn(x), randomized(block)))


SWINS = dict(
    mmdet=partial(swin_of_openmmlab, mmdet_swin.ShiftWindowMSA),
    mmpretrain=partial(swin_of_openmmlab, mmpretrain_swin.ShiftWindowMSA, pad_small_map=True),
    timm=swin_of_timm,
)


@pytest.mark.parametrize('shift', [0, 2])
@pytest.mark.parametrize('make', SWINS.values(), ids=SWINS)
def test_windows(make: Callable[[int], Toy], shift: int) -> None:
    """Each token's output is that of the weights and the values at the places of its window, padding included."""
    toy = make(shift)
    for grid in ((8, 12), (5, 9), (4, 4), (3, 7)):
        x = torch.randn(2, CHANNELS, *grid, dtype=torch.float64)
        (recording,) = record_attention(toy, x)
        assert recording.grid == grid and recording.windows.size == (WINDOW, WINDOW)
        attention = recording.maps(torch.arange(grid[0] * grid[1]))['attention']
        assert attention.weights.shape == (2, HEADS, grid[0] * grid[1], WINDOW, WINDOW)
        padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 0, WINDOW, 0, WINDOW))
        tokens = padded[:, attention.rows[:, :, None], attention.columns[:, None]]  # (B, queries, 4, 4, C)
        values = recording.layer.qkv(tokens).chunk(3, -1)[2].unflatten(-1, (HEADS, -1))
        output = torch.einsum('bhqrc,bqrchd->bqhd', attention.weights, values).flatten(2)
        torch.testing.assert_close(recording.layer.proj(output).mT.unflatten(-1, grid), toy(x)[0])


@pytest.mark.parametrize('name', ['test_vit', 'deit_tiny_distilled_patch16_224', 'eva02_tiny_patch14_224'])
@torch.no_grad()
def test_global_attention_of_timm(name: str) -> None:
    """What is left to a sum of 1 goes to class token and others; the output is that of all weights."""
    size = (98, 140) if 'eva' in name else (96, 160)
    backbone = TimmBackbone(name, False, size).eval()
    model, recordings = backbone.model, record_attention(backbone, torch.randn(2, 3, *size))
    assert len(recordings) == len(model.blocks)
    grid = tuple(length // (14 if 'eva' in name else 16) for length in size)
    for recording in (recordings[0], recordings[-1]):
        assert recording.grid == grid and recording.prefix == model.num_prefix_tokens
        layer, (x, *_) = recording.layer, recording.inputs
        queries = torch.tensor([0, 7, grid[0] * grid[1] - 1])
        weights = recording.maps(queries)['attention'].weights
        left = 1 - weights.sum((-2, -1))
        assert (left > 0).all() if recording.prefix else (left.abs() < 1e-5).all()
        if 'eva' not in name:  # which turns queries and keys by their places
            query, key, _ = layer.qkv(x).unflatten(-1, (3, layer.num_heads, -1)).permute(2, 0, 3, 1, 4)
            query, key = layer.q_norm(query), layer.k_norm(key)
            wanted = (query[:, :, recording.prefix + queries] @ key.mT * layer.scale).softmax(-1)
            torch.testing.assert_close(weights.flatten(3), wanted[..., recording.prefix :])


def test_a_pixel_where_the_rest_of_an_image_is_left_out() -> None:
    """BEiT has no tokens at the right and bottom of 90 x 150 pixels: no other's attention is shown."""
    backbone, pixels = TimmBackbone('beit_base_patch16_224', False, (90, 150)).eval(), torch.zeros(1, 3, 90, 150)
    recording = record_attention(backbone, pixels)[0]
    image = PreparedImage(None, (90, 150), np.zeros((90, 150, 3), np.uint8), pixels, {})
    assert attention_of(recording, image, (79, 143)).token == (4, 8)
    for query in ((79, 144), (80, 143)):
        with pytest.raises(InputError, match=f'--query {query[0]} {query[1]} is where .* leaves out .* 5 x 9: set'):
            attention_of(recording, image, query)


def of_channels(tokens: Tensor) -> Tensor:
    return tokens @ (tokens.mT @ tokens).softmax(-1)


LEFT_OUT = {
    'two softmaxes': lambda x: ((x @ x.mT).softmax(-1) + (-x @ x.mT).softmax(-1)) @ x,
    'fewer keys': lambda x: (x @ x[:, :, ::2].mT).softmax(-1) @ x[:, :, ::2],
    'channels': of_channels,
    'rolled': lambda x: of_channels(torch.roll(x, 1)),
    'rolled along an axis': lambda x: of_channels(torch.roll(input=x, shifts=1, dims=2)),
}


@pytest.mark.parametrize('name', LEFT_OUT)
def test_left_out(name: str) -> None:
    layer = Layer(lambda _, x: LEFT_OUT[name](x.flatten(1, 2)[:, None]).view(x.shape))  # one head
    assert record_attention(Toy(layer), torch.randn(1, 6, 4, 8)) == []


def test_multi_head_attention_in_another_layer() -> None:
    """`nn.MultiheadAttention` gives the weights of every head; the layer around it has a second softmax."""

    def run(attention: nn.Module, x: Tensor) -> Tensor:
        tokens = x.flatten(1, 2)
        tokens = attention(query=tokens, key=tokens, value=tokens, need_weights=False)[0][:, None]
        return ((tokens @ tokens.mT).softmax(-1) @ tokens).view(x.shape)

    attention = nn.MultiheadAttention(CHANNELS, HEADS, batch_first=True).eval()
    x = torch.randn(1, CHANNELS, 4, 6)
    (recording,) = record_attention(Toy(Layer(run, attention)), x)
    assert recording.name == 'layer.inner' and isinstance(recording, OtherRecording)
    weights = recording.maps(torch.arange(24))['attention'].weights.flatten(3)
    tokens = x.permute(0, 2, 3, 1).flatten(1, 2)
    _, wanted = attention(tokens, tokens, tokens, average_attn_weights=False)
    torch.testing.assert_close(weights, wanted)


def test_leaves_nothing_behind_after_an_error() -> None:
    toy = Toy(Layer(lambda _, x: x.view(7)))
    with pytest.raises(RuntimeError):
        record_attention(toy, torch.randn(1, 6, 4, 8))
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in toy.modules())
