"""The systems as their formulas are written, for every pair of tokens: what they are measured against.

TransNeXt unfolds windows, and finds its position bias by a sort of all pairs' coordinates; ConViT, PerViT, GAB and
TransNeXt's last stage have the weights or the bias of all pairs in memory. Parameters and results are the same.
"""

import functools
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from bioattn_mm.ops import gated_convolution
from bioattn_mm.ops.cosine_attention import normalised
from bioattn_mm.ops.relative_bias_attention import bias_of_pairs
from bioattn_mm.systems.common.layout import split_heads
from bioattn_mm.systems.convit import GPSA
from bioattn_mm.systems.gab import GaussianRelPosAttention
from bioattn_mm.systems.pervit import DistanceEmbedding, PeripheralAttention
from bioattn_mm.systems.pervit.attention import GRID_STEP, KEY_MARGIN
from bioattn_mm.systems.transnext import LengthScaledAttention, LogCPB, attention, blocks, conv_glu

# isort: split
# mmcv.ops comes after bioattn_mm, without which its import fails where its operators are not compiled.
from mmcv.ops import multi_scale_deform_attn

Grid = tuple[int, int]


def unfolded_attention(*tensors: Tensor, **by_name: Tensor) -> Tensor:
    """Aggregated attention; the k * k window keys and values of every query are copied side by side."""
    inputs = normalised(*tensors, **by_name)
    batch, height, width, heads, channels = inputs.query.shape
    window = round(inputs.window_bias.shape[1] ** 0.5)

    def unfold(x: Tensor) -> Tensor:  # (B, heads, N, d, k * k)
        x = F.unfold(x.flatten(3).permute(0, 3, 1, 2), window, padding=window // 2)
        return x.view(batch, heads, channels, window**2, -1).permute(0, 1, 4, 2, 3)

    def tokens(x: Tensor) -> Tensor:  # (B, heads, N, d)
        return x.flatten(1, 2).transpose(1, 2)

    query = tokens(inputs.query)
    inside = F.unfold(query.new_ones(1, 1, height, width), window, padding=window // 2)[0].T  # (N, k * k)
    window_logits = (query.unsqueeze(-2) @ unfold(inputs.key)).squeeze(-2) + inputs.window_bias[:, None]
    window_logits = window_logits.masked_fill(inside == 0, float('-inf'))
    bias = inputs.pooled_bias[:, inputs.pooled_bias_rows].transpose(2, 3).flatten(3).flatten(1, 2)  # (heads, N, P)
    pooled_logits = query @ tokens(inputs.pooled_key).transpose(-2, -1) + bias
    weights = torch.cat([window_logits, pooled_logits], dim=-1).softmax(dim=-1)
    window_weights, pooled_weights = weights.split([window**2, pooled_logits.shape[-1]], dim=-1)
    window_weights = window_weights + tokens(inputs.token_weights)
    output = (window_weights.unsqueeze(-2) @ unfold(inputs.value).transpose(-2, -1)).squeeze(-2)
    output = output + pooled_weights @ tokens(inputs.pooled_value)
    return output.transpose(1, 2).unflatten(1, (height, width))


def all_pairs_table(layer: LogCPB, grid: Grid, pooled_grid: Grid) -> tuple[Tensor, ...]:
    """`LogCPB.table` of all pairs, whose distinct coordinates are found by sorting those of all pairs.

    The blocks of a stage share the sort. In 'interpolate' mode all calls share it, as in a network that prepares the
    coordinates of its training size once.
    """
    resize = layer.bias_mode == 'interpolate'
    source, source_pooled = (layer.train_grid, layer.train_pooled_grid) if resize else (grid, pooled_grid)
    table, index = unique_coordinates(source, source_pooled, layer.pretrain_grid)
    bias = layer.fc2(F.relu(layer.fc1(table))).T[:, index]
    bias = bias.view(-1, math.prod(source), *source_pooled)
    bias = F.interpolate(bias, pooled_grid, mode='bilinear').flatten(2) if resize else bias.flatten(2)
    if resize:
        bias = F.interpolate(bias.transpose(1, 2).unflatten(2, source), grid, mode='bilinear')
        bias = bias.flatten(2).transpose(1, 2)
    # (heads, N, P) to (heads, H * Ph, W * Pw): a row for each pair of rows, and a column for each pair of columns.
    bias = bias.unflatten(1, grid).unflatten(3, pooled_grid).transpose(2, 3).flatten(1, 2).flatten(2)
    rows, columns = (
        torch.arange(length * pooled_length).view(length, pooled_length)
        for length, pooled_length in zip(grid, pooled_grid)
    )
    return bias, rows[..., None], bias.new_empty(*rows.shape, 0), columns


@functools.cache
def unique_coordinates(grid: Grid, pooled_grid: Grid, pretrain_grid: Grid) -> tuple[Tensor, Tensor]:
    """Distinct log-spaced coordinates (D, 2) of all pairs, and the index of each pair among them (N * P,)."""
    coordinates = []
    for axis in (0, 1):
        query = torch.arange(grid[axis], dtype=torch.float32)
        pooled = F.adaptive_avg_pool1d(query[None], pooled_grid[axis])[0]
        coordinates.append((query[:, None] - pooled) / (pretrain_grid[axis] - 1) * 8)
    shape = (*grid, *pooled_grid)
    vertical = coordinates[0][:, None, :, None].expand(shape).flatten()
    horizontal = coordinates[1][None, :, None, :].expand(shape).flatten()
    pairs = torch.stack([vertical, horizontal], dim=-1)
    table, index = torch.unique(pairs, return_inverse=True, dim=0)
    return table.sign() * torch.log2(table.abs() + 1) / math.log2(8), index


def gpsa(layer: GPSA, x: Tensor, *_: Tensor) -> Tensor:
    """GPSA by eq. 7 of ConViT."""
    (query, key), (value,) = (split_heads(y, n, layer.num_heads) for y, n in ((layer.qk(x), 2), (layer.v(x), 1)))
    content = (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(-1)
    position = layer.pos_proj(relative_positions(tuple(x.shape[1:3]), x.device)).permute(2, 0, 1).softmax(-1)
    gate = layer.gating_param.sigmoid()[:, None, None]
    weights = (1 - gate) * content + gate * position
    weights = weights / weights.sum(-1, keepdim=True)
    return layer.proj((weights @ value).transpose(1, 2).reshape(x.shape))


@functools.cache  # computed once, as the released code does
def relative_positions(grid: Grid, device: torch.device) -> Tensor:
    """Offsets of all pairs of tokens and their squared distance, (N, N, 3)."""
    position = torch.cartesian_prod(*(torch.arange(length, device=device) for length in grid))
    dy, dx = (position - position[:, None]).float().unbind(-1)
    return torch.stack((dx, dy, dx**2 + dy**2), dim=-1)


def peripheral_attention(
    layer: PeripheralAttention, x: Tensor, distance_embedding: DistanceEmbedding, **_: object
) -> Tensor:
    """PerViT's attention by its eq. 5 to 8."""
    height, width = x.shape[1:3]
    query, key, value = layer.query_key_value(x)

    def coordinates(margin: int) -> Tensor:
        rows, columns = (torch.arange(-margin, length + margin, device=x.device) for length in (height, width))
        return GRID_STEP * torch.cartesian_prod(rows, columns).to(x.dtype)

    distance = torch.cdist(coordinates(0), coordinates(KEY_MARGIN))  # (N, keys and margin)
    position = layer.position
    hidden = distance_embedding.proj(distance[..., None]).transpose(1, 2)
    hidden = hidden.unflatten(2, (height + 2 * KEY_MARGIN, width + 2 * KEY_MARGIN))
    hidden = F.relu(position.norm1(position.conv1(hidden)))
    phi_p = position.norm2(position.conv2(hidden)).sigmoid().flatten(2).transpose(0, 1)
    logits = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    phi_c = (logits - logits.amax(-1, keepdim=True)).exp()
    output = F.normalize(phi_c * phi_p, p=1, dim=-1) @ value
    return layer.proj(output.transpose(1, 2).reshape(x.shape))


def gaussian_attention(layer: GaussianRelPosAttention, x: Tensor, *_: Tensor) -> Tensor:
    """GABViT's attention with the bias of all pairs."""
    query, key, value = layer.qkv(x).unflatten(-1, (3, layer.num_heads, -1)).unbind(-3)
    grid = tuple(x.shape[1:3])
    return attention_with_bias(layer, query, key, value, bias_of_pairs(layer.rel_pos.table(grid), grid)[None], None)


def length_scaled_attention(layer: LengthScaledAttention, x: Tensor) -> Tensor:
    """The attention of TransNeXt's last stage with the bias of all pairs."""
    grid = tuple(x.shape[1:3])
    bias, rows = layer.position_bias(grid, grid)
    bias = bias[:, rows].transpose(2, 3).flatten(3).flatten(1, 2)
    return attention_with_bias(layer, *layer._query_key_value(x), bias, 1.0)


def attention_with_bias(
    layer: GaussianRelPosAttention | LengthScaledAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    scale: float | None,
) -> Tensor:
    """PyTorch's attention of tokens (B, H, W, heads, d), projected."""
    tokens = (x.flatten(1, 2).transpose(1, 2) for x in (query, key, value))
    output = F.scaled_dot_product_attention(*tokens, attn_mask=bias, scale=scale)
    return layer.proj(output.transpose(1, 2).reshape(*query.shape[:3], -1))


NAME = 'multi_scale_deformable_attn_pytorch'
# Functions of each system, and the formulas that replace them.
FORMULAS = {
    'transnext': (
        (attention, 'cosine_attention', unfolded_attention),
        (conv_glu, 'gated_convolution', partial(gated_convolution, backend='reference')),
        (LogCPB, 'table', all_pairs_table),
        (LengthScaledAttention, 'forward', length_scaled_attention),
        # Blocks call their layers instead of the operators.
        (blocks, '_may_be_operators', lambda x: False),
    ),
    'convit': ((GPSA, 'forward', gpsa),),
    # mmcv's, which `mmcv_ops.patches` replaces.
    'deformable': ((multi_scale_deform_attn, NAME, getattr(multi_scale_deform_attn, NAME).__wrapped__),),
    'pervit': ((PeripheralAttention, 'forward', peripheral_attention),),
    'gab': ((GaussianRelPosAttention, 'forward', gaussian_attention),),
    'transnext-stage-4': ((LengthScaledAttention, 'forward', length_scaled_attention),),
}


@contextmanager
def written_out(system: str) -> Iterator[None]:
    """Context in which a system runs by the formulas of this file."""
    with ExitStack() as patches:
        for place, name, formula in FORMULAS.get(system, ()):
            patches.enter_context(mock.patch.object(place, name, formula))
        yield
