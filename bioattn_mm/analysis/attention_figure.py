"""Drawings of what one pixel of an image attends to, over the image.

All pictures of a drawing have one scale, that of `relative_weight`: 1 is attention that is spread evenly over the
image. A box marks the token of the pixel; the image has axes in pixels of the model's input.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..errors import InputError
from .attention import ATTENTION, FOVEAL, LEARNABLE_TOKENS, PERIPHERAL, Attention, relative_weight
from .figures import COLORS, draw_heat, outlined, panels
from .images import PreparedImage

# The logarithmic scale of relative weights ends at the largest that is drawn, at least at the first of these, and
# begins as far below 1, at most at the second.
BRIGHTEST, DARKEST = 3.0, 0.1
TICKS = (0.1, 0.3, 0.5, 1, 2, 5, 10, 30, 100, 300, 1000, 3000)
MARK_COLOR = '#50ff78'
# The box around the token of the query has at least this share of the image's longer side.
MARK_SIZE = 0.1
COLUMNS = 7
PHOTO = 'image, in pixels'  # the title of the picture that shows the image alone
FREE = None  # a place in a line that holds no picture
WIDTH = 2.1  # inches of a picture


@dataclass
class Picture:
    """An image, or one of the maps of a layer, to be drawn over it.

    Attributes:
        title: What it shows.
        image: The image.
        attention: The layer, and the pixel that is marked.
        part: Name of the map, one of `attention.parts`; None for the image alone.
        head: Number of the head; None for the mean of all.
    """

    title: str
    image: PreparedImage
    attention: Attention
    part: str | None = None
    head: int | None = None

    def __post_init__(self) -> None:
        parts = self.attention.parts
        if self.part not in (None, *parts):
            raise InputError(f'--part must be one of {", ".join(parts)} in this layer, got {self.part}')

    @cached_property
    def values(self) -> np.ndarray:
        """Relative weights, float32, of the size of `image.pixels`."""
        height, width = self.image.pixels.shape[:2]
        size = tuple(self.image.inputs.shape[2:])
        return relative_weight(self.attention.parts[self.part], self.head, size)[:height, :width]


def draw_attention(
    image: PreparedImage,
    attention: Attention,
    part: str = ATTENTION,
    heads: list[int] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw an image, the mean over the heads of each of a layer's maps, and some heads of the map `part`."""
    of_heads = pictures_of_heads(image, attention, part, heads)
    several = attention.num_heads(part) > 1
    lines = [[Picture(PHOTO, image, attention)], [FREE]]
    for name in _in_reading_order(attention):
        line = lines[0] if attention.parts[name][0].is_of_query else lines[1]
        title_of_map = name + _share(attention, name) + '\nmean of heads' * several
        line.append(Picture(title_of_map, image, attention, name))
    return draw_lines([line for line in (*lines, of_heads if several else [FREE]) if line != [FREE]], title)


def draw_layers(image: PreparedImage, layers: list[Attention], title: str | None = None) -> Figure:
    """Draw an image, and a line for each layer: the mean over the heads of each of its maps of the pixel."""
    lines = []
    for attention in layers:
        names = [name for name in _in_reading_order(attention) if attention.parts[name][0].is_of_query]
        titles = {name: f'{attention.layer}\n{name}{_share(attention, name)}' for name in names}
        first = FREE if lines else Picture(PHOTO, image, attention)
        lines.append([first, *(Picture(text, image, attention, name) for name, text in titles.items())])
    return draw_lines(lines, title)


def pictures_of_heads(
    image: PreparedImage, attention: Attention, part: str = ATTENTION, heads: list[int] | None = None
) -> list[Picture]:
    """The pictures of the heads of a map, each with its gate; see `draw_attention`."""
    number = attention.num_heads(Picture('', image, attention, part).part)
    if not set(heads or ()) <= set(range(number)):
        raise InputError(f'--heads must be 0 to {number - 1} in this layer, got {" ".join(map(str, heads))}')
    gates = [f', gate {gate:.2f}' for gate in attention.gates or ()] or [''] * number
    heads = range(number) if heads is None else heads
    return [Picture(f'{part}, head {head}{gates[head]}', image, attention, part, head) for head in heads]


def draw_lines(lines: list[list[Picture | None]], title: str | None = None, columns: int = COLUMNS) -> Figure:
    """Draw lines of pictures, each in so many parts that none is longer than `columns`; None leaves a place free."""
    places = []
    for line in lines:  # parts of about the same length
        length = math.ceil(len(line) / math.ceil(len(line) / columns))
        places += [line[start : start + length] for start in range(0, len(line), length)]
    columns = max(map(len, places))
    pictures = [picture for line in lines for picture in line if picture is not FREE]
    height, width = pictures[0].image.pixels.shape[:2]
    picture_height = WIDTH * min(2, max(0.4, height / width)) + 0.45
    figure, axes = panels(len(places) * columns, columns, WIDTH + 1.1 / columns, picture_height, 0.4)
    figure.suptitle(title, fontsize=9)

    largest = max(BRIGHTEST, *(picture.values.max() for picture in pictures if picture.part))
    norm = LogNorm(max(DARKEST, 1 / largest), largest)
    for axis, picture in zip(axes, (place for line in places for place in line + [FREE] * (columns - len(line)))):
        axis.axis('off')
        if picture is not FREE:
            _draw_picture(axis, picture, norm)
    ticks = [tick for tick in TICKS if norm.vmin <= tick <= norm.vmax]
    colors = ScalarMappable(norm, COLORS)
    bar = figure.colorbar(colors, ax=axes, extend='min', aspect=30, fraction=0.03, pad=0.01, ticks=ticks, format='%g')
    bar.set_label('weight of a pixel; 1: spread evenly', fontsize=7)
    bar.ax.tick_params(labelsize=7)
    bar.minorticks_off()
    bar.ax.axhline(1, color='white', linewidth=1)
    return figure


def _in_reading_order(attention: Attention) -> list[str]:
    """The names of the maps, the attention itself after its parts; then what is no part of it.

    TransNeXt's learnable tokens are left out: their weights are no part of the softmax.
    """
    others = [name for name in attention.parts if name in (FOVEAL, PERIPHERAL)]
    parts = [name for name in attention.parts if name not in (ATTENTION, LEARNABLE_TOKENS, *others)]
    return [*parts, ATTENTION, *others]


def _share(attention: Attention, name: str) -> str:
    """The share of TransNeXt's window or pooled tokens in all weights, which sum to 1."""
    if name not in ('window', 'pooled'):
        return ''
    (panel,) = attention.parts[name]
    return f', {100 * np.nansum(panel.values) / len(panel.values):.0f} % of all'


def _draw_picture(axis: Axes, picture: Picture, norm: LogNorm) -> None:
    """Draw weights over their image, or the image with axes in pixels, and a box around the token of the query."""
    pixels, attention = picture.image.pixels, picture.attention
    height, width = pixels.shape[:2]
    axis.set_title(picture.title, fontsize=8)
    if picture.part is None:
        axis.axis('on')
        axis.tick_params(labelsize=6)
    else:
        heat = np.clip(norm(np.maximum(picture.values, norm.vmin)), 0, 1)
        pixels = draw_heat(pixels, np.asarray(heat))
    axis.imshow(pixels, extent=(0, width, height, 0))
    if picture.part is None or attention.parts[picture.part][0].is_of_query:
        side = max(attention.stride, MARK_SIZE * max(height, width))  # at some distance where the token is small
        row, column = ((place + 0.5) * attention.stride - side / 2 for place in attention.token)
        style = dict(fill=False, edgecolor=MARK_COLOR, linewidth=1.2, path_effects=outlined(2.6))
        axis.add_patch(Rectangle((column, row), side, side, **style))
