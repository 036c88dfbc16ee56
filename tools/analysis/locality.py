#!/usr/bin/env python
"""How far the attention of each layer and head of a model reaches, and what it is made of.

For every model with attention you get the nonlocality: the distance between query and key in tokens, weighted by
attention (ConViT, eq. 8 and figure 5). Some systems have more: ConViT its gates (figure 6); PerViT the impact of
content and of position, its own nonlocality of both and of their product, and the region of the visual field that a
head attends to (PerViT, eq. 11 to 13, figures 5, 7 and 8); GAB A and sigma of its Gaussians; TransNeXt the share of
the pooled tokens; VARS how sparse its codes are. bioattn_mm/analysis/locality.py has the definitions.
"""

import argparse
import math
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import bioattn_mm.cli.threads_and_memory  # noqa: F401

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from rich.progress import track
from torch import nn

from bioattn_mm.analysis.conditions import CLEAN, Model
from bioattn_mm.analysis.figures import panels
from bioattn_mm.analysis.images import find_images
from bioattn_mm.analysis.locality import DERIVATIVE_QUERIES, REGIONS, measure_model
from bioattn_mm.analysis.models import attention_layers, read_sources
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.reports import Report, print_table
from bioattn_mm.systems.pervit.backbone import ConditionalPosition

FILES = ('locality.csv', 'locality.json', 'locality.png')
# Panels: title, label of the axis, and measures with their names in the legend.
PANELS = (
    (
        'nonlocality',
        'tokens',
        dict(nonlocality='attention', nonlocality_content='content alone', nonlocality_position='position alone'),
    ),
    ('share of position (gate)', 'sigmoid(g)', dict(gate='gate')),
    ('impact on attention', '1 / Frobenius norm', dict(impact_content='content', impact_position='position')),
    (
        'nonlocality of Phi',
        'Omega (tokens)',
        dict(omega_attention='attention', omega_content='content', omega_position='position'),
    ),
    ('share of the pooled tokens', 'sum of weights', dict(pooled_share='pooled')),
    ('sparsity of the codes', "Hoyer's sparsity", dict(sparsity='after the last step')),
    ('Gaussian bias: amplitude', 'A', dict(gaussian_amplitude='A')),
    ('Gaussian bias: width', 'sigma (tokens)', dict(gaussian_sigma='sigma')),
)
# Impacts are inverse distances, and Phi_c is an exponential that nothing normalises: they span orders of magnitude.
OVER_DECADES = ('impact on attention', 'nonlocality of Phi')


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'analysis/locality.py configs/convit/upernet_tiny_ade20k.py iter_160000.pth --out locality --size 224 224',
        'analysis/locality.py --timm deit_tiny_patch16_224 pretrained --images photos --out locality',
        'analysis/locality.py configs/pervit/pervit-tiny_8xb128_in1k.py tiny.pth '
        '--compare configs/pervit/pervit-small_8xb128_in1k.py small.pth --images photos --out locality',
    )
    help = (
        'measure the attention of N tokens in each layer, spread evenly over the image (default: all; '
        f'{DERIVATIVE_QUERIES} for VARS)'
    )
    parser.add_integer('--queries', minimum=1, metavar='N', help=help)
    parser.add_backbone_arguments(', '.join(FILES), max_images=8)
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    report = Report(args.out, *FILES)
    sources = read_sources(args)
    images = find_images(sources[0].config, args.images, args.max_images)
    models, weights = {}, {}
    for source in sources:
        model = Model.build(source, size=args.size, device=args.device)
        read = model.readers[CLEAN]
        recordings = (
            attention_layers(source.name, model.backbone, read(image).inputs)
            for image in track(images, description=source.name)
        )
        models[source.name] = Measured(measure_model(recordings, args.queries), layers_of_one_region(model.backbone))
        weights[source.name] = model.weights

    heads = [dict(model=name, **row) for name, model in models.items() for row in model.rows]
    report.write_csv('locality.csv', heads)
    report.write_json('locality.json', dict(weights=weights, images=len(images), heads=heads))
    number = f'{len(images)} image{"s" * (len(images) > 1)}'
    titles = {name: f'{name}, {Path(weights[name]).name}' for name in models}
    report.write_figure('locality.png', draw(models, f'{"; ".join(titles.values())}; {number}'))
    for name, model in models.items():
        print_means(model.rows, f'{titles[name]}, {number}')
    print(report)


@dataclass
class Measured:
    """What `measure_model` returned for a model, and its layers that count as central, see `draw_regions`."""

    rows: list[dict]
    num_central: int


def layers_of_one_region(backbone: nn.Module) -> int:
    """How many layers of a block of PerViT count as central: both of the feed-forward network, and the CPE."""
    return 2 + any(isinstance(module, ConditionalPosition) for module in backbone.modules())


def draw(models: dict[str, Measured], title: str) -> Figure:
    """Draw each measure over the layers, and the regions of each model that has them.

    Args:
        models: By name what was measured.
        title: Of the figure.
    """
    every = [row for model in models.values() for row in model.rows]
    measured = {key for row in every for key in row}
    drawn = [panel for panel in PANELS if measured & set(panel[2])]
    with_regions = [name for name, model in models.items() if any('region' in row for row in model.rows)]
    figure, axes = panels(len(drawn) + 2 * len(with_regions), 3, 4.6, 3.4, 0.4)
    figure.suptitle(title, fontsize=10)
    places = iter(axes)
    for (name, label, measures), axis in zip(drawn, places):
        draw_measures(axis, models, {key: text for key, text in measures.items() if key in measured})
        axis.set(title=name, ylabel=label)
        if name in OVER_DECADES:
            axis.set_yscale('log')
            axis.yaxis.set_major_formatter('{x:g}')
            axis.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
            axis.yaxis.set_minor_formatter('{x:g}')
        set_layers(axis, every)
    for name in with_regions:
        bars, pie = next(places), next(places)
        draw_regions(bars, pie, models[name], f'{name}\n' if len(models) > 1 else '')
        set_layers(bars, models[name].rows)
    return figure


def set_layers(axis: Axes, rows: list[dict]) -> None:
    axis.set(xlabel='layer', xlim=(-0.7, max(row['layer'] for row in rows) + 0.7))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def draw_measures(axis: Axes, models: dict[str, Measured], measures: dict[str, str]) -> None:
    """Draw a line through the means of each layer, and of a single model a point for each head.

    A dotted line stands where the grid changes: distances in tokens are then of another unit.
    """
    alone = len(models) == 1
    for (name, model), dashes in zip(models.items(), cycle(('-', '--', ':', '-.'))):
        for index, (key, text) in enumerate(measures.items()):
            of_layers = {}
            for row in model.rows:
                if math.isfinite(row.get(key, math.nan)):
                    of_layers.setdefault(row['layer'], []).append(row[key])
            # Shifted a little, so that the points of several measures do not cover each other.
            places = [layer + 0.12 * (index - (len(measures) - 1) / 2) * alone for layer in of_layers]
            means = [np.mean(values) for values in of_layers.values()]
            if means:
                label = text if alone else f'{name}, {text}'
                axis.plot(places, means, label=label, color=f'C{index}', linestyle=dashes)
            for place, values in zip(places, of_layers.values()) if alone else ():
                axis.plot([place] * len(values), values, '.', color=f'C{index}', alpha=0.5)
        grids = {row['layer']: (row['height'], row['width']) for row in model.rows}
        for layer in grids:
            if layer and grids[layer] != grids[layer - 1]:
                axis.axvline(layer - 0.5, color='grey', linestyle=':', linewidth=1)
    axis.grid(alpha=0.3)
    if len(measures) * len(models) > 1:
        axis.legend(fontsize=8 if alone else 6)


def draw_regions(bars: Axes, pie: Axes, model: Measured, name: str) -> None:
    """Draw how many layers and heads belong to each region, of every block and of the whole (PerViT, figure 5).

    Args:
        bars: Axes of the bars, one for each block.
        pie: Axes of the pie of the whole model.
        model: What was measured; `num_central` layers of each block are no attention and count as central (PerViT,
            footnote 7).
        name: What comes before the titles.
    """
    rows = model.rows
    layers = sorted({row['layer'] for row in rows if 'region' in row})
    bottom, totals = np.zeros(len(layers)), []
    colors = matplotlib.colormaps['viridis'](np.linspace(0, 1, len(REGIONS)))
    for index, (region, color) in enumerate(zip(REGIONS, colors)):
        number = [sum(row['layer'] == layer and row.get('region') == region for row in rows) for layer in layers]
        number = np.array(number) + (model.num_central if index == 0 else 0)
        bars.bar(layers, number, bottom=bottom, label=region, color=color)
        bottom += number
        totals.append(number.sum())
    bars.set(
        title=f'{name}regions of position-based attention', ylabel='layers and heads', ylim=(0, 1.35 * bottom.max())
    )
    bars.legend(fontsize=8, ncols=2, loc='upper center')
    labels = [f'{100 * total / sum(totals):.0f} %' for total in totals]
    pie.pie(totals, labels=labels, colors=colors, counterclock=False)
    pie.set(title=f'{name}regions, all layers')


def print_means(rows: list[dict], title: str) -> None:
    """Print the means over the heads of each layer."""
    columns = [key for _, _, measures in PANELS for key in measures if any(key in row for row in rows)]
    short = {'nonlocality': 'D', 'gaussian_amplitude': 'A', 'gaussian_sigma': 'sigma'}
    names = (short.get(key, key.replace('nonlocality', 'D').replace('_', ' ')) for key in columns)
    lines = []
    for layer in sorted({row['layer'] for row in rows}):
        heads = [row for row in rows if row['layer'] == layer]
        means = (np.mean([row[key] for row in heads]) if key in heads[0] else math.nan for key in columns)
        cells = ('' if math.isnan(mean) else f'{mean:.3g}' for mean in means)
        lines.append((layer, f'{heads[0]["height"]}x{heads[0]["width"]}', *cells))
    print_table(f'{title}; means over heads, D is nonlocality in tokens', ('layer', 'grid', *names), lines)


if __name__ == '__main__':
    main()
