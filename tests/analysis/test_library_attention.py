"""Attention of other libraries: weights and places that give the layers' own outputs, and what is left out."""

from collections.abc import Callable
from functools import partial

import pytest
import timm
import torch
import torch.nn.functional as F
from mmdet.models.backbones import swin as mmdet_swin
from mmpretrain.models import utils as mmpretrain_swin
from timm.models.swin_transformer import SwinTransformerBlock
from torch import Tensor, nn

from bioattn_mm.analysis.attention_recorder import OtherRecording, record_attention
from tests.systems.layers import randomized

CHANNELS, HEADS, WINDOW = 12, 3, 4


class Toy(nn.Module):
    """A backbone with one attention layer, without patch embedding: (B, C, H, W) to one map."""

    def __init__(self, layer: nn.Module, run: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.run = layer, run

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.run(self.layer, x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),)


def swin_of_openmmlab(kind: type[nn.Module], shift: int, **options: object) -> Toy:
    layer = kind(CHANNELS, HEADS, WINDOW, shift, **options)
    return Toy(randomized(layer), lambda layer, x: layer(x.flatten(1, 2), x.shape[1:3]).view(x.shape))


def swin_of_timm(shift: int) -> Toy:
    block = SwinTransformerBlock(CHANNELS, (64, 64), HEADS, window_size=WINDOW, shift_size=shift, dynamic_mask=True)
    block.norm1, block.mlp = nn.Identity(), nn.Identity()
    randomized(block)

    class Attention(nn.Module):
        """The block's attention without the rest; the map goes through a module, as it does through the block."""

        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Tensor:
            return self.block._attn(x)

    return Toy(Attention(), lambda layer, x: layer(x))


@pytest.mark.parametrize('shift', [0, 2])
@pytest.mark.parametrize(
    'make',
    [
        partial(swin_of_openmmlab, mmdet_swin.ShiftWindowMSA),
        partial(swin_of_openmmlab, mmpretrain_swin.ShiftWindowMSA, pad_small_map=True),
        swin_of_timm,
    ],
    ids=['mmdet', 'mmpretrain', 'timm'],
)
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
    options = dict(img_size=size) if 'eva' in name else dict(dynamic_img_size=True)
    model = timm.create_model(name, **options).eval()

    class Maps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> list[Tensor]:
            return self.model.forward_intermediates(x, output_fmt='NCHW', intermediates_only=True)

    recordings = record_attention(Maps(), torch.randn(2, 3, *size))
    assert len(recordings) == len(model.blocks)
    stride = 14 if 'eva' in name else 16
    grid = tuple(length // stride for length in size)
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


class Several(nn.Module):
    """A layer of other kinds of attention."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(1, 2)[:, None]  # one head
        if self.kind == 'two softmaxes':
            weights = 0.5 * (tokens @ tokens.mT).softmax(-1) + 0.5 * (-tokens @ tokens.mT).softmax(-1)
        elif self.kind == 'channels':
            return (tokens @ (tokens.mT @ tokens).softmax(-1)).view(x.shape)
        else:
            tokens = tokens[:, :, ::2]
            weights = (x.flatten(1, 2)[:, None] @ tokens.mT).softmax(-1)
        return (weights @ tokens).view(x.shape)


@pytest.mark.parametrize(
    ('kind', 'roll'),
    [
        ('two softmaxes', lambda x: x),
        ('channels', lambda x: x),
        ('fewer keys', lambda x: x),
        # Maps that are rolled along one axis.
        ('channels', lambda x: torch.roll(x, 1)),
        ('channels', lambda x: torch.roll(input=x, shifts=1, dims=2)),
    ],
)
def test_left_out(kind: str, roll: Callable[[Tensor], Tensor]) -> None:
    toy = Toy(Several(kind), lambda layer, x: layer(roll(x)))
    assert record_attention(toy, torch.randn(1, 6, 4, 8)) == []


def test_multi_head_attention_in_another_layer() -> None:
    """`nn.MultiheadAttention` gives the weights of every head; the layer around it has a second softmax."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.MultiheadAttention(CHANNELS, HEADS, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            tokens = x.flatten(1, 2)
            tokens = self.first(query=tokens, key=tokens, value=tokens, need_weights=False)[0][:, None]
            return ((tokens @ tokens.mT).softmax(-1) @ tokens).view(x.shape)

    toy = Toy(Layer().eval(), lambda layer, x: layer(x))
    x = torch.randn(1, CHANNELS, 4, 6)
    (recording,) = record_attention(toy, x)
    assert recording.name == 'layer.first' and isinstance(recording, OtherRecording)
    weights = recording.maps(torch.arange(24))['attention'].weights.flatten(3)
    tokens = x.permute(0, 2, 3, 1).flatten(1, 2)
    _, wanted = toy.layer.first(tokens, tokens, tokens, average_attn_weights=False)
    torch.testing.assert_close(weights, wanted)


def test_leaves_nothing_behind_after_an_error() -> None:
    toy = Toy(Several('channels'), lambda layer, x: layer(x[:, 9:]).view(x.shape))
    with pytest.raises(RuntimeError):
        record_attention(toy, torch.randn(1, 6, 4, 8))
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in toy.modules())
