"""What one pixel of an image attends to in one layer: the weights of every head, at their places in the image."""

from dataclasses import dataclass

import cv2
import numpy as np
import torch

from ..errors import InputError
from ..systems.common.attention_maps import AttentionMap, Recording, whole_attention
from .images import PreparedImage, stride_of
from .locality import MAX_NUMEL, choose_queries

MASKED = 1e-20  # a weight below this is that of a masked key
ATTENTION = 'attention'  # the attention itself, among the maps of a layer
# Weights of TransNeXt that are added to those of the window, after the softmax.
LEARNABLE_TOKENS = 'learnable tokens'
# What TransNeXt would attend to by content alone, were no token pooled: no part of its attention.
FOVEAL, PERIPHERAL = 'all tokens, content alone', 'pooled tokens, content alone'
# This map has what each token gets, see `attention_received`.
RECEIVED = 'received'


@dataclass
class Panel:
    """One map of a query.

    Attributes:
        name: Name of the map.
        values: Weights of each head, float32 (heads, R, C); NaN where there are no keys.
        extent: Left, right, bottom and top edge in the model's input, in pixels.
        is_of_query: Whether the values depend on the query.
        is_share: Whether they are shares of a softmax, as VARS's weights are not, nor those of TransNeXt's learnable
            tokens, which are added to the softmax.
    """

    name: str
    values: np.ndarray
    extent: tuple[int, int, int, int]
    is_of_query: bool = True
    is_share: bool = True


@dataclass
class Attention:
    """What a pixel attends to in one layer.

    Attributes:
        layer: The layer's name in the model.
        panels: The layer's maps of the pixel.
        token: Row and column of the token that covers the pixel.
        grid: (height, width) of the layer's tokens.
        stride: Stride of the tokens in pixels of the model's input.
        gates: Share of position of each head, where the layer has gates (ConViT's GPSA).
    """

    layer: str
    panels: list[Panel]
    token: tuple[int, int]
    grid: tuple[int, int]
    stride: int
    gates: list[float] | None

    @property
    def parts(self) -> dict[str, list[Panel]]:
        """The maps by name, first the attention itself.

        That is the window and the pooled tokens for TransNeXt, which share one softmax, else the query's last map.
        """
        by_name = {panel.name: [panel] for panel in self.panels}
        if 'pooled' in by_name:
            return {ATTENTION: by_name['window'] + by_name['pooled'], **by_name}
        last = [name for name, (panel,) in by_name.items() if panel.is_of_query][-1]
        return {ATTENTION: by_name.pop(last), **by_name}

    def num_heads(self, part: str) -> int:
        return max(len(panel.values) for panel in self.parts[part])


def attention_of(
    recording: Recording, image: PreparedImage, query: tuple[int, int], with_received: bool = False
) -> Attention:
    """What a pixel, row and column in its file, of an image attends to in a layer, which was recorded.

    `with_received` adds the map `RECEIVED`, for which all queries are computed.
    """
    stride = stride_of(recording.grid, tuple(image.inputs.shape[2:]))
    token = tuple(position // stride for position in image.input_pixel(query))
    if any(index >= length for index, length in zip(token, recording.grid)):
        left_out = f'--query {query[0]} {query[1]} is where {recording.name} leaves out the rest of the image'
        raise InputError(f'{left_out}, whose tokens are {recording.grid[0]} x {recording.grid[1]}: set --size')
    attention = attention_of_token(recording, token, stride)
    if with_received:
        values, is_share = attention_received(recording), not hasattr(recording.layer, 'reconstruction_norms')
        attention.panels.append(Panel(RECEIVED, values, _whole(recording, stride), False, is_share))
    return attention


def attention_of_token(recording: Recording, token: tuple[int, int], stride: int) -> Attention:
    """What a token, (row, column), attends to; the stride of tokens is in pixels.

    Of TransNeXt there are also `FOVEAL` and `PERIPHERAL`, of VARS the strength of each step.
    """
    layer, (height, width), whole = recording.layer, recording.grid, _whole(recording, stride)
    is_vars = hasattr(layer, 'reconstruction_norms')
    queries = torch.tensor([token[0] * width + token[1]], device=recording.tokens.device)
    maps = recording.maps(queries)
    if hasattr(layer, 'foveal_map'):
        with torch.no_grad():
            maps[FOVEAL] = layer.foveal_map(recording.inputs[0], queries)
            maps[PERIPHERAL] = layer.peripheral_map(recording.inputs[0], queries)
    panels = []
    for name, values in maps.items():
        weights = values.weights[0, :, 0].float().cpu().numpy()
        rows, columns = (positions[0].cpu().numpy() for positions in (values.rows, values.columns))
        # A shifted window may have the size of the map, and other places.
        is_whole = np.array_equal(rows, np.arange(height)) and np.array_equal(columns, np.arange(width))
        if is_whole or values.rows.is_floating_point():  # pooled tokens cover the map together
            panels.append(Panel(name, weights, whole, is_share=not is_vars))
        else:
            panels.append(_window_panel(name, weights, rows, columns, recording.grid, stride))
    if is_vars:
        norms = layer.reconstruction_norms(recording.inputs[0])[:, 0].detach().float().cpu().numpy()
        panels += [Panel(f'strength, step {step}', values, whole, False, False) for step, values in enumerate(norms)]
    gates = recording.head_parameters().get('gate')
    return Attention(recording.name, panels, token, recording.grid, stride, gates)


def _whole(recording: Recording, stride: int) -> tuple[int, int, int, int]:
    """The extent of a panel of all tokens."""
    height, width = recording.grid
    return 0, width * stride, height * stride, 0


def _window_panel(
    name: str, weights: np.ndarray, rows: np.ndarray, columns: np.ndarray, grid: tuple[int, int], stride: int
) -> Panel:
    """The part of a window, a rectangle, that is inside the grid and not masked."""
    inside = [(0 <= places) & (places < length) for places, length in zip((rows, columns), grid)]
    # A shifted window may wrap around the map; the mask keeps the tokens on the query's side.
    seen = (np.abs(weights).max(0) > MASKED) & inside[0][:, None] & inside[1]
    if not seen.any():  # all weights are 0, as those of learnable tokens that are left out
        seen = inside[0][:, None] & inside[1]
    r, c = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
    (top, bottom), (left, right) = ((places.min(), places.max() + 1) for places in (rows[r], columns[c]))
    values = np.full((len(weights), bottom - top, right - left), np.nan, np.float32)
    values[:, rows[r][:, None] - top, columns[c] - left] = weights[:, r[:, None], c]
    extent = tuple(int(stride * side) for side in (left, right, bottom, top))
    return Panel(name, values, extent, is_share=name != LEARNABLE_TOKENS)


@torch.no_grad()
def attention_received(recording: Recording, num_queries: int | None = None) -> np.ndarray:
    """The attention that each token of an image gets, the mean over the queries: (heads, H, W), none negative.

    Of TransNeXt that is what it gets in windows and as a part of pooled tokens; of VARS, whose weights are no shares,
    the norm of its reconstruction (the paper defines no strength). `num_queries` is that of `choose_queries`.
    """
    layer = recording.layer
    if hasattr(layer, 'reconstruction_norms'):
        return layer.reconstruction_norms(*recording.inputs)[-1, 0].float().cpu().numpy()
    queries = choose_queries(recording, num_queries)
    total = 0
    for chunk in queries.split(max(1, MAX_NUMEL // recording.tokens.numel())):
        for part in whole_attention(recording.maps(chunk)):
            total = total + _on_grid(part, recording.grid)
    return total / len(queries)


def _on_grid(part: AttentionMap, grid: tuple[int, int]) -> np.ndarray:
    """The sum of a map over its queries, at the places of the grid: (heads, H, W)."""
    weights, (height, width) = part.weights[0].abs().float(), grid  # (heads, queries, R, C)
    if part.rows.is_floating_point():  # pooled tokens, of which each token has a part
        pooled = weights.sum(1).cpu().numpy()
        share = pooled.shape[1] * pooled.shape[2] / (height * width)
        return np.stack([cv2.resize(p, (width, height), interpolation=cv2.INTER_NEAREST) for p in pooled]) * share
    rows, columns = (places.expand(weights.shape[1], -1) for places in (part.rows, part.columns))
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None]
    places = (rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None]).flatten()
    total = weights.new_zeros(len(weights), height * width)
    total.index_add_(1, places, (weights * inside).flatten(1))
    return total.unflatten(1, grid).cpu().numpy()


def relative_weight(panels: list[Panel], head: int | None, size: tuple[int, int]) -> np.ndarray:
    """`weight_per_pixel`, relative to attention that is spread evenly over all pixels.

    Values that are no shares of a softmax (see `Panel`) are taken without their sign, relative to their mean over the
    pixels that they cover.
    """
    weight = weight_per_pixel(panels, head, size)
    if all(panel.is_share for panel in panels):
        return weight * weight.size
    weight = np.abs(weight)
    return weight / (weight[weight > 0].mean() if weight.any() else 1)


def weight_per_pixel(panels: list[Panel], head: int | None, size: tuple[int, int]) -> np.ndarray:
    """The weight of each pixel of the model's input: that of its key, divided by the number of the key's pixels.

    So keys of different sizes, such as tokens of a window and pooled ones, can be compared and added.

    Args:
        panels: Maps to add.
        head: Number of the head, None for the mean of all. A map with one for all heads gives that.
        size: (height, width) of the model's input in pixels.

    Returns:
        float32 (height, width); 0 where there are no keys.
    """
    height, width = size
    total = np.zeros(size, np.float32)
    for panel in panels:
        heads = np.nan_to_num(panel.values)
        if head is not None and len(heads) > 1 and not 0 <= head < len(heads):
            raise InputError(f'the head must be 0 to {len(heads) - 1} in this layer, got {head}')
        values = heads.mean(0) if head is None or len(heads) == 1 else heads[head]
        left, right, bottom, top = panel.extent
        area = (right - left) * (bottom - top) / values.size
        pixels = cv2.resize(values / area, (right - left, bottom - top), interpolation=cv2.INTER_NEAREST)
        total[top:bottom, left:right] += pixels[: height - top, : width - left]
    return total
