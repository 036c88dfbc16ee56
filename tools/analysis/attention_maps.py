#!/usr/bin/env python
"""What a pixel of an image attends to in one layer: the weights of every head, drawn and as numbers.

TransNeXt: the window and the pooled tokens (figure 7 of its paper). PerViT and ConViT: the attention that content
alone and position alone would give, the attention that the layer makes of both, and ConViT's gates (figure 6; figures
6 and 7). GAB: the same, and the attention of the Gaussian alone. VARS: the weights after each step of the recurrence,
and how strongly each step reconstructs each token (figure 5). A panel covers the image, or the window of windowed
attention.
"""

import argparse
from pathlib import Path

import bioattn_mm.cli.threads  # noqa: F401

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from rich.progress import track

from bioattn_mm.analysis.attention_panels import Panel, find_token, gates_of, panels_of
from bioattn_mm.analysis.images import ImageReader, PreparedImage, find_images
from bioattn_mm.analysis.models import build_backbone
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.config import load_config
from bioattn_mm.cli.reports import Report
from bioattn_mm.errors import InputError
from bioattn_mm.layers import record_attention
from bioattn_mm.layers.attention_maps import Recording

TABLE = 'attention_maps.json'
PANEL = 1.8  # inches


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'analysis/attention_maps.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth --out maps --layer 2 '
        '--query 120 300',
    )
    parser.add_argument(
        '--layer',
        type=int,
        default=-1,
        help='number of the attention layer, from 0; negative numbers count from the end (default: -1)',
    )
    parser.add_argument(
        '--query',
        type=int,
        nargs=2,
        metavar=('ROW', 'COLUMN'),
        help='pixel of the image file whose attention is drawn (default: the middle)',
    )
    parser.add_argument('--heads', type=int, nargs='+', metavar='HEAD', help='heads to draw, from 0 (default: all)')
    parser.add_backbone_arguments(f'{TABLE} and a drawing of each image', max_images=4)
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    report = Report(args.out, TABLE)
    dataloaders = () if args.images else ('val_dataloader',)
    config = load_config(args.config, mini=args.mini, cfg_options=args.cfg_options, dataloaders=dataloaders)
    paths = find_images(config, args.images, args.max_images)
    backbone, weights = build_backbone(config, args.checkpoint, args.device)
    reader = ImageReader(config, args.size, args.device)

    results = []
    for number, path in enumerate(track(paths, description='images')):
        image = reader(path)
        recording = choose_layer(record_attention(backbone, image.inputs), args.layer)
        query = args.query or [length // 2 for length in image.original_size]
        place, stride = find_token(recording, image, query)
        panels = panels_of(recording, place, stride)
        heads = choose_heads(panels, args.heads)
        drawing = f'{number:03d}_{path.stem}.png'
        title = f'{recording.name} of {Path(args.config).stem}\n{Path(weights).name}'
        gates = gates_of(recording)
        figure = draw(title, image, panels, heads, place, stride, gates)
        report.write_figure(drawing, figure)
        about = dict(image=str(path), drawing=drawing, query=list(query), token=list(place))
        results.append(dict(about, **numbers_of(recording, panels, gates)))
    about = dict(config=args.config, weights=weights, layer=recording.name)
    report.write_json(TABLE, dict(about, images=results), indent=None)
    print(f'{recording.name}, {weights}')
    print(f'{report}  {len(results)} drawings such as {report.path(drawing)}')


def choose_layer(recordings: list[Recording], number: int) -> Recording:
    if not -len(recordings) <= number < len(recordings):
        raise InputError(f'--layer must be {-len(recordings)} to {len(recordings) - 1} in this model, got {number}')
    return recordings[number]


def choose_heads(panels: list[Panel], wanted: list[int] | None) -> list[int]:
    number = max(len(panel.values) for panel in panels)
    if wanted is None:
        return list(range(number))
    if not set(wanted) <= set(range(number)):
        raise InputError(f'--heads must be 0 to {number - 1} in this layer, got {" ".join(map(str, wanted))}')
    return wanted


def draw(
    title: str,
    image: PreparedImage,
    panels: list[Panel],
    heads: list[int],
    place: tuple[int, int],
    stride: int,
    gates: list[float] | None,
) -> Figure:
    """Draw the image, and a line for each map: the mean over the heads, then each head."""
    height, width = image.pixels.shape[:2]
    lines, columns = len(panels), 2 + (len(heads) if max(len(panel.values) for panel in panels) > 1 else 0)
    panel_height = PANEL * min(2, max(0.5, height / width))
    size = (1.35 * PANEL * columns, (panel_height + 0.35) * lines + 0.6)
    figure = Figure(figsize=size)
    axes = figure.subplots(lines, columns, squeeze=False)
    figure.subplots_adjust(
        left=0.01, right=1 - 0.3 / columns, bottom=0.15 / size[1], top=1 - 0.8 / size[1], wspace=0.35, hspace=0.3
    )
    figure.suptitle(title, fontsize=9, y=1 - 0.08 / size[1], va='top')
    for axis in axes.flat:
        axis.axis('off')
    axes[0, 0].imshow(image.pixels, extent=(0, width, height, 0))
    axes[0, 0].set_title(image.path.name, fontsize=7)
    mark(axes[0, 0], place, stride)
    for line, panel in zip(axes[:, 1:], panels):
        title = f'{panel.name}, mean of heads' if len(panel.values) > 1 else panel.name
        drawings = [(line[0], panel.values.mean(0), title)]
        if len(panel.values) > 1:
            for axis, head in zip(line[1:], heads):
                gate = f', gate {gates[head]:.2f}' if gates and panel.name == 'attention' else ''
                drawings.append((axis, panel.values[head], f'head {head}{gate}'))
        for axis, values, title in drawings:
            show(figure, axis, panel, values, title)
            if panel.is_of_query:
                mark(axis, place, stride)
    return figure


def show(figure: Figure, axis: Axes, panel: Panel, values: np.ndarray, title: str) -> None:
    """Draw values at their place in the image, with a colour bar from the smallest to the largest."""
    image = axis.imshow(values, extent=panel.extent, cmap='viridis')
    axis.set_title(title, fontsize=7)
    bar = figure.colorbar(image, cax=axis.inset_axes([1.03, 0, 0.05, 1]), ticks=[*image.get_clim()], format='%.2g')
    bar.ax.tick_params(labelsize=5, length=1, pad=1)


def mark(axis: Axes, place: tuple[int, int], stride: int) -> None:
    """Outline the token of the query."""
    corner = (place[1] * stride, place[0] * stride)
    axis.add_patch(Rectangle(corner, stride, stride, fill=False, edgecolor='red', linewidth=1.2))


def numbers_of(recording: Recording, panels: list[Panel], gates: list[float] | None) -> dict:
    """The drawing in numbers: for each map an array (heads, R, C) and the rectangle in the image that it covers."""
    numbers = dict(grid=list(recording.grid), maps=[])
    if gates:
        numbers['gates'] = gates
    for panel in panels:
        values = [[[float(f'{v:.6g}') for v in row] for row in head] for head in panel.values]
        left, right, bottom, top = panel.extent
        numbers['maps'].append(dict(name=panel.name, left=left, top=top, right=right, bottom=bottom, values=values))
    return numbers


if __name__ == '__main__':
    main()
