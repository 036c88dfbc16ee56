"""What one pixel of an image attends to in one layer: the weights of every head, at their places in the image."""

from dataclasses import dataclass

import cv2
import numpy as np
import torch

from ..errors import InputError
from ..layers.attention_maps import Recording
from .attention_segmentation import attention_received
from .images import PreparedImage, stride_of

# Weights below this are of masked keys.
MASKED = 1e-20
# Name that `named_panels` gives to the attention itself.
ATTENTION = 'attention'
# Weights of TransNeXt that are added to those of the window, after the softmax.
LEARNABLE_TOKENS = 'learnable tokens'
# What TransNeXt would attend to by content alone, were no token pooled: no part of its attention.
FOVEAL, PERIPHERAL = 'all tokens, content alone', 'pooled tokens, content alone'
# The name of the map of what each token gets, the mean over all queries; see `attention_received`.
RECEIVED = 'received'


@dataclass
class Panel:
    """Values of one map and query.

    Attributes:
        name: Name of the map.
        values: Weights of each head, float32 (heads, R, C); NaN where there are no keys.
        extent: Left, right, bottom and top edge in the model's input, in pixels.
        is_of_query: Whether the values depend on the query.
        is_share: Whether the values are shares of a softmax: none negative, with a sum of at most 1. The weights of
            VARS are not, and those of TransNeXt's learnable tokens, which are added to the softmax.
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
        """The maps that can be looked at by name, see `named_panels`."""
        return named_panels(self.panels)


def attention_of(
    recording: Recording, image: PreparedImage, query: tuple[int, int], with_received: bool = False
) -> Attention:
    """What a pixel of an image attends to.

    Args:
        recording: The layer and what went into it, of `image`.
        image: The image.
        query: Row and column of the pixel in the image file.
        with_received: With the map `RECEIVED`, for which all queries are computed.

    Raises:
        InputError: The image has no such pixel.
    """
    token, stride = find_token(recording, image, query)
    panels = panels_of(recording, token, stride)
    if with_received:
        (height, width), is_share = recording.grid, not hasattr(recording.layer, 'reconstruction_norms')
        extent = (0, width * stride, height * stride, 0)
        panels.append(Panel(RECEIVED, attention_received(recording), extent, False, is_share))
    return Attention(recording.name, panels, token, recording.grid, stride, gates_of(recording))


def find_token(recording: Recording, image: PreparedImage, query: tuple[int, int]) -> tuple[tuple[int, int], int]:
    """Row and column of the token that covers a pixel of the image file, and the stride of tokens in pixels.

    Raises:
        InputError: The image has no such pixel.
    """
    stride = stride_of(recording.grid, tuple(image.inputs.shape[2:]))
    return tuple(position // stride for position in image.input_pixel(query)), stride


def gates_of(recording: Recording) -> list[float] | None:
    """Share of position of each head, where the layer has gates (ConViT's GPSA)."""
    return recording.head_parameters().get('gate')


def panels_of(recording: Recording, place: tuple[int, int], stride: int) -> list[Panel]:
    """The maps of one query, of TransNeXt also `FOVEAL` and `PERIPHERAL`; of VARS the strength of each step.

    Args:
        recording: The layer and what went into it.
        place: Row and column of the query in the layer's tokens.
        stride: Stride of the tokens in pixels.
    """
    height, width = recording.grid
    whole = (0, width * stride, height * stride, 0)
    is_vars = hasattr(recording.layer, 'reconstruction_norms')
    panels = []
    queries = torch.tensor([place[0] * width + place[1]], device=recording.tokens.device)
    maps = recording.maps(queries)
    if hasattr(recording.layer, 'foveal_map'):
        with torch.no_grad():
            maps[FOVEAL] = recording.layer.foveal_map(recording.inputs[0], queries)
            maps[PERIPHERAL] = recording.layer.peripheral_map(recording.inputs[0], queries)
    for name, values in maps.items():
        weights = values.weights[0, :, 0].float().cpu().numpy()
        rows, columns = (positions[0].cpu().numpy() for positions in (values.rows, values.columns))
        # A shifted window may have the size of the map, and other places.
        is_whole = np.array_equal(rows, np.arange(height)) and np.array_equal(columns, np.arange(width))
        if is_whole or values.rows.is_floating_point():  # pooled tokens cover the map together
            panels.append(Panel(name, weights, whole, is_share=not is_vars))
        else:
            panels.append(_window_panel(name, weights, rows, columns, recording.grid, stride))
            panels[-1].is_share = name != LEARNABLE_TOKENS
    if is_vars:
        norms = recording.layer.reconstruction_norms(recording.inputs[0])[:, 0].detach().float().cpu().numpy()
        panels += [Panel(f'strength, step {step}', values, whole, False, False) for step, values in enumerate(norms)]
    return panels


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
    return Panel(name, values, tuple(int(stride * side) for side in (left, right, bottom, top)))


def named_panels(panels: list[Panel]) -> dict[str, list[Panel]]:
    """The maps that can be looked at by name, first the attention itself.

    That is the window and the pooled tokens together for TransNeXt, which share one softmax, else the last map of the
    query (see `layers.attention_maps.AttentionMaps`).
    """
    by_name = {panel.name: [panel] for panel in panels}
    if 'pooled' in by_name:
        return {ATTENTION: by_name['window'] + by_name['pooled'], **by_name}
    last = [name for name, (panel,) in by_name.items() if panel.is_of_query][-1]
    return {ATTENTION: by_name.pop(last), **by_name}


def relative_weight(panels: list[Panel], head: int | None, size: tuple[int, int]) -> np.ndarray:
    """The weight of each pixel of the model's input, relative to attention that is spread evenly over all of them.

    Values that are no shares of a softmax (see `Panel`) are taken without their sign, relative to their mean over the
    pixels that they cover.

    Args:
        panels: Maps to add.
        head: Number of the head, None for the mean of all.
        size: (height, width) of the model's input in pixels.

    Returns:
        float32 (height, width), none negative.

    Raises:
        InputError: There is no such head.
    """
    weight = weight_per_pixel(panels, head, size)
    if all(panel.is_share for panel in panels):
        return weight * weight.size
    weight = np.abs(weight)
    return weight / (weight[weight > 0].mean() if weight.any() else 1)


def weight_per_pixel(panels: list[Panel], head: int | None, size: tuple[int, int]) -> np.ndarray:
    """The weight of each pixel of the model's input: that of its key, divided by the number of the key's pixels.

    So keys of different sizes, such as tokens of a window and pooled ones, can be compared and added. The sum is
    that of the weights, less those of keys outside the image: class tokens, and padding of windows and of the image.

    Args:
        panels: Maps to add.
        head: Number of the head, None for the mean of all. A map with one for all heads gives that.
        size: (height, width) of the model's input in pixels.

    Returns:
        float32 (height, width); 0 where there are no keys.

    Raises:
        InputError: There is no such head.
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
