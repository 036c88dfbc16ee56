"""Drawings of what one pixel of an image attends to in one layer, over the image."""

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import Normal, Stroke

from ..errors import InputError
from .attention_panels import ATTENTION, FOVEAL, LEARNABLE_TOKENS, PERIPHERAL, Attention, relative_weight
from .heat import COLORS, draw_heat
from .images import PreparedImage

# The scale of relative weights ends at the largest that is drawn, at least at the first of these, and begins as far
# below 1, at most at the second. It is logarithmic: windows and pooled tokens differ by orders of magnitude.
BRIGHTEST, DARKEST = 3.0, 0.1
TICKS = (0.1, 0.3, 0.5, 1, 2, 5, 10, 30, 100, 300, 1000, 3000)
MARK_COLOR = '#50ff78'
# The box around the token of the query has at least this share of the image's longer side.
MARK_SIZE = 0.1
COLUMNS = 7
MAX_IN_ONE_LINE = 4
# A place in a line without picture.
FREE = None
WIDTH = 2.1  # inches of a picture


@dataclass
class Picture:
    """An image, or weights to be drawn over it.

    Attributes:
        title: What it shows.
        image: The image.
        attention: The layer and the pixel that is marked.
        values: Relative weights, float32, of the size of `image.pixels`; None for the image alone.
        is_of_query: Whether the weights are of the pixel, which is then marked.
    """

    title: str
    image: PreparedImage
    attention: Attention
    values: np.ndarray | None = None
    is_of_query: bool = True


def draw_attention(
    image: PreparedImage,
    attention: Attention,
    part: str = ATTENTION,
    heads: list[int] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw an image, the mean over the heads of each of a layer's maps, and the heads of one of them.

    All pictures have one scale, that of `relative_weight`: 1 is attention that is spread evenly over the image. A box
    marks the token of the pixel; the image has axes in pixels of the model's input.

    Args:
        image: The image.
        attention: What the pixel attends to in a layer.
        part: Map whose heads are drawn, one of `attention.parts`.
        heads: Heads to draw, None for all.
        title: A line above the drawing.

    Raises:
        InputError: The layer has no such map or no such head.
    """
    number = _number_of_heads(attention, part)
    of_heads = _of_heads(image, attention, part, heads)
    suffix = '\nmean of heads' if number > 1 else ''
    lines = [[_photo(image, attention)], [FREE]]
    for name in _in_reading_order(attention):
        line = lines[0] if attention.parts[name][0].is_of_query else lines[1]
        line.append(_picture(f'{name}{_share(attention, name)}{suffix}', image, attention, name))
    if number > 1:
        lines.append(of_heads)
    return _draw([line for line in lines if line != [FREE]], title)


def draw_heads(
    layers: list[tuple[str, PreparedImage, Attention]],
    part: str = ATTENTION,
    heads: list[int] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw a line for each layer: the image, and the heads of one of the layer's maps.

    As in `draw_attention`.

    Args:
        layers: The name of a layer, the image as its model got it, and what the pixel attends to.
        part: Map whose heads are drawn, which all layers have.
        heads: Heads to draw, None for all.
        title: A line above the drawing.

    Raises:
        InputError: A layer has no such map or no such head.
    """
    lines = [
        [_photo(image, attention, name), *_of_heads(image, attention, part, heads)]
        for name, image, attention in layers
    ]
    return _draw(lines, title, max(map(len, lines)))


def draw_layers(image: PreparedImage, layers: list[Attention], title: str | None = None) -> Figure:
    """Draw an image, and a line for each layer: the mean over the heads of each of its maps of the pixel.

    As in `draw_attention`.

    Args:
        image: The image.
        layers: What the pixel attends to in some layers.
        title: A line above the drawing.
    """
    lines = []
    for attention in layers:
        first = FREE if lines else _photo(image, attention)
        names = [name for name in _in_reading_order(attention) if attention.parts[name][0].is_of_query]
        titles = [f'{attention.layer}\n{name}{_share(attention, name)}' for name in names]
        lines.append([first, *(_picture(text, image, attention, name) for text, name in zip(titles, names))])
    return _draw(lines, title)


def draw_models(
    models: dict[str, tuple[PreparedImage, list[Attention]]], part: str = ATTENTION, title: str | None = None
) -> Figure:
    """Draw an image, and a line for each layer: one of its maps in each of several models, the mean over the heads.

    As in `draw_attention`. One layer of many models takes two lines.

    Args:
        models: By name the image as the model gets it, and what the pixel attends to in some layers, the same number
            in each model.
        part: Map that is drawn, which all these layers have.
        title: A line above the drawing.

    Raises:
        InputError: A layer has no such map.
    """
    lines = []
    first_image, first_layers = next(iter(models.values()))
    for number in range(len(first_layers)):
        line = [FREE if lines else _photo(first_image, first_layers[0])]
        for name, (image, layers) in models.items():
            _number_of_heads(layers[number], part)
            line.append(_picture(f'{name}\n{layers[number].layer}', image, layers[number], part))
        lines.append(line)
    columns = 1 + len(models)
    return _draw(lines, title, math.ceil(columns / 2) if len(lines) == 1 and columns > MAX_IN_ONE_LINE else columns)


def draw_conditions(
    conditions: dict[str, list[tuple[str, PreparedImage, Attention]]], part: str = ATTENTION, title: str | None = None
) -> Figure:
    """Draw a line for each state of an image: the image, and one of the maps of some layers, the mean over the heads.

    As in `draw_attention`.

    Args:
        conditions: By the name of the state the layers: a title, the image as the model got it, and what the pixel
            attends to.
        part: Map that is drawn, which all layers have.
        title: A line above the drawing.

    Raises:
        InputError: A layer has no such map.
    """
    lines = []
    for condition, layers in conditions.items():
        _, image, attention = layers[0]
        line = [_photo(image, attention, f'{condition}, in pixels')]
        for text, image, attention in layers:
            _number_of_heads(attention, part)
            line.append(_picture(text, image, attention, part))
        lines.append(line)
    return _draw(lines, title)


def _number_of_heads(attention: Attention, part: str) -> int:
    """Heads of a map.

    Raises:
        InputError: The layer has no such map.
    """
    if part not in attention.parts:
        raise InputError(f'--part must be one of {", ".join(attention.parts)} in this layer, got {part}')
    return max(len(panel.values) for panel in attention.parts[part])


def _of_heads(image: PreparedImage, attention: Attention, part: str, heads: list[int] | None) -> list[Picture]:
    """The heads of a map, each with its gate.

    Raises:
        InputError: The layer has no such map or no such head.
    """
    number = _number_of_heads(attention, part)
    if not set(heads or ()) <= set(range(number)):
        raise InputError(f'--heads must be 0 to {number - 1} in this layer, got {" ".join(map(str, heads))}')
    gates = attention.gates or []
    titles = [f'{part}, head {head}' + (f', gate {gates[head]:.2f}' if gates else '') for head in range(number)]
    heads = range(number) if heads is None else heads
    return [_picture(titles[head], image, attention, part, head) for head in heads]


def _in_reading_order(attention: Attention) -> list[str]:
    """The names of the maps, the attention itself after the parts that it is made of; last what is no part of it.

    TransNeXt's learnable tokens are left out: their weights are no part of the softmax.
    """
    others = [name for name in attention.parts if name in (FOVEAL, PERIPHERAL)]
    parts = [name for name in attention.parts if name not in (ATTENTION, LEARNABLE_TOKENS, *others)]
    return [*parts, ATTENTION, *others]


def _share(attention: Attention, name: str) -> str:
    """The share of the window and of the pooled tokens of TransNeXt in all weights, which sum to 1."""
    if name not in ('window', 'pooled'):
        return ''
    (panel,) = attention.parts[name]
    return f', {100 * np.nansum(panel.values) / len(panel.values):.0f} % of all'


def _photo(image: PreparedImage, attention: Attention, title: str = 'image, in pixels') -> Picture:
    return Picture(title, image, attention)


def _picture(title: str, image: PreparedImage, attention: Attention, part: str, head: int | None = None) -> Picture:
    height, width = image.pixels.shape[:2]
    values = relative_weight(attention.parts[part], head, tuple(image.inputs.shape[2:]))
    return Picture(title, image, attention, values[:height, :width], attention.parts[part][0].is_of_query)


def _draw(lines: list[list[Picture | None]], title: str | None, columns: int = COLUMNS) -> Figure:
    """Draw pictures in lines of at most `columns`."""
    places = [part for line in lines for part in _split(line, columns)]
    columns = max(map(len, places))
    pictures = [picture for line in lines for picture in line if picture is not FREE]
    height, width = pictures[0].image.pixels.shape[:2]
    picture_height = WIDTH * min(2, max(0.4, height / width)) + 0.45
    figure = Figure(figsize=(WIDTH * columns + 1.1, picture_height * len(places) + 0.4), layout='constrained')
    figure.suptitle(title, fontsize=9)
    axes = figure.subplots(len(places), columns, squeeze=False)
    for axis in axes.flat:
        axis.axis('off')

    largest = max(BRIGHTEST, *(picture.values.max() for picture in pictures if picture.values is not None))
    norm = LogNorm(max(DARKEST, 1 / largest), largest)
    for row, line in zip(axes, places, strict=True):
        for axis, picture in zip(row, line):
            if picture is not FREE:
                show(axis, picture, norm)
                if picture.is_of_query:
                    mark(axis, picture)
    add_color_bar(figure, axes, norm)
    return figure


def _split(line: list, columns: int) -> list[list]:
    """Parts of a line of about the same length, at most `columns`."""
    length = math.ceil(len(line) / math.ceil(len(line) / columns))
    return [line[start : start + length] for start in range(0, len(line), length)]


def show(axis: Axes, picture: Picture, norm: LogNorm) -> None:
    """Draw weights over their image, or the image with axes in pixels."""
    height, width = picture.image.pixels.shape[:2]
    axis.set_title(picture.title, fontsize=8)
    if picture.values is None:
        axis.axis('on')
        axis.imshow(picture.image.pixels, extent=(0, width, height, 0))
        axis.tick_params(labelsize=6)
        return
    heat = np.clip(norm(np.maximum(picture.values, norm.vmin)), 0, 1)
    axis.imshow(draw_heat(picture.image.pixels, np.asarray(heat)), extent=(0, width, height, 0))


def add_color_bar(figure: Figure, axes: np.ndarray, norm: LogNorm) -> None:
    """Say what the colours are, beside the drawings."""
    ticks = [tick for tick in TICKS if norm.vmin <= tick <= norm.vmax]
    colors = ScalarMappable(norm, COLORS)
    bar = figure.colorbar(colors, ax=axes, extend='min', aspect=30, fraction=0.03, pad=0.01, ticks=ticks, format='%g')
    bar.set_label('weight of a pixel; 1: spread evenly', fontsize=7)
    bar.ax.tick_params(labelsize=7)
    bar.minorticks_off()
    bar.ax.axhline(1, color='white', linewidth=1)


def mark(axis: Axes, picture: Picture) -> None:
    """Draw a box around the token of the query, at some distance where the token is small."""
    attention = picture.attention
    side = max(attention.stride, MARK_SIZE * max(picture.image.pixels.shape[:2]))
    row, column = ((place + 0.5) * attention.stride - side / 2 for place in attention.token)
    outline = [Stroke(linewidth=2.6, foreground='black'), Normal()]
    box = Rectangle((column, row), side, side, fill=False, edgecolor=MARK_COLOR, linewidth=1.2, path_effects=outline)
    axis.add_patch(box)
