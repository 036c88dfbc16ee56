#!/usr/bin/env python
"""Parameters and FLOPs of models side by side, as papers tabulate them; with --out also as files and a chart.

Parameters are all of the model's, with auxiliary heads and frozen ones.

FLOPs are multiply-adds, each counted once, of the forward pass of one image in eval mode: convolutions, matrix
products, attention by any operator, Fourier transforms and what bioattn_mm/analysis/flops.py says; not norms,
activations, softmax, resizing and element-wise arithmetic. 'Once a size' is work that is cached for an image size,
such as position biases. 'Of layers' counts only convolutions and linear layers, as ptflops and other counters of
modules do, without the products of queries, keys and values.

Weights are random; the second stage of a detector runs on the proposals that they give.
"""

import argparse

import bioattn_mm.cli.threads_and_memory  # noqa: F401

from matplotlib.figure import Figure
from mmengine.config import Config
from rich.progress import track

from bioattn_mm.analysis.model_stats import (
    DENSE_SIZE,
    Network,
    default_size,
    multiply_adds,
    num_parameters,
    random_image,
)
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.reports import Report, print_table
from bioattn_mm.runtime.files import unique_name
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.installed import find_configs

FILES = ('model_stats.csv', 'model_stats.json', 'model_stats.png')
# Columns of the table: title, unit, and the number that is one unit. Those of the size are printed if it differs.
SIZE = dict(height=('height', 'pixels', 1), width=('width', 'pixels', 1))
COLUMNS = dict(
    parameters=('parameters', 'M', 1e6),
    backbone_parameters=('of the backbone', 'M', 1e6),
    flops=('FLOPs', 'G', 1e9),
    backbone_flops=('of the backbone', 'G', 1e9),
    layer_flops=('of layers', 'G', 1e9),
    flops_of_size=('once a size', 'G', 1e9),
)
# The columns that are drawn.
BARS = ('parameters', 'flops')


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'analysis/model_stats.py configs/transnext/upernet_tiny_ade20k.py configs/convit/upernet_tiny_ade20k.py '
        '--out stats --size 512 2048',
        'analysis/model_stats.py configs/*/mask_rcnn_*_coco.py --backbone --size 224 224 --out stats',
        'analysis/model_stats.py configs/convit/convit-small-plus_8xb64_in1k.py configs/convit/ablations',
    )
    help = (
        'config file, such as configs/transnext/upernet_tiny_ade20k.py, or folder of config files, such as '
        'configs/convit/ablations'
    )
    parser.add_argument('configs', nargs='+', metavar='CONFIG', help=help)
    parser.add_out(', '.join(FILES), required=False)
    help = 'input size; papers take 512 2048 for UperNet and 800 1280 for detectors'
    of_others = "a classifier's test size, such as 224 224, else {} {}".format(*DENSE_SIZE)
    parser.add_size(None, help, otherwise=of_others)
    parser.add_argument('--backbone', action='store_true', help='count only the backbones')
    parser.add_config_options()
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    report = Report(args.out, *FILES) if args.out else None
    configs = {}
    for path in (path for name in args.configs for path in find_configs(name)):
        configs[unique_name(path, configs)] = load_config(path, mini=args.mini, cfg_options=args.cfg_options)
    rows = [measure(name, config, args) for name, config in track(configs.items(), 'measuring', total=len(configs))]
    part = 'backbone' if args.backbone else 'whole model'
    sizes = {f'{row["height"]} x {row["width"]} pixels' for row in rows}
    several = len(sizes) > 1
    title = f'{part}, {"images of several sizes" if several else sizes.pop()}'
    if report:
        report.write_csv('model_stats.csv', rows)
        report.write_json('model_stats.json', dict(part=part, models=rows))
        report.write_figure('model_stats.png', draw(rows, title))
    columns = SIZE | COLUMNS if several else COLUMNS
    columns = {key: column for key, column in columns.items() if key in rows[0]}
    cells = [(row['model'], *(f'{row[key] / scale:.4g}' for key, (_, _, scale) in columns.items())) for row in rows]
    print_table(title, ('model', *(f'{name}\n({unit})' for name, unit, _ in columns.values())), cells)
    if report:
        print(report)


def measure(name: str, config: Config, args: argparse.Namespace) -> dict:
    """The row of a model."""
    network = Network(config, args.backbone)
    size = args.size or default_size(config)
    row = dict(zip(SIZE, size), parameters=num_parameters(network))
    if not args.backbone:
        row['backbone_parameters'] = num_parameters(network.model.backbone)
    row |= multiply_adds(network, random_image(size, network.in_channels))
    return {'model': name} | {key: row[key] for key in SIZE | COLUMNS if key in row}


def draw(rows: list[dict], title: str) -> Figure:
    """Draw a panel of bars for each measure."""
    keys = [key for key in BARS if key in rows[0]]
    figure = Figure(figsize=(3 + 2.6 * len(keys), 1.4 + 0.4 * len(rows)), layout='constrained')
    axes = figure.subplots(1, len(keys), squeeze=False, sharey=True)
    figure.suptitle(title, fontsize=9)
    for axis, key in zip(axes[0], keys):
        name, unit, scale = COLUMNS[key]
        values = [row[key] / scale for row in rows]
        bars = axis.barh([row['model'] for row in rows], values, color=[f'C{index}' for index in range(len(rows))])
        texts = [f'{value:.3g}' if value < 1000 else f'{value:.0f}' for value in values]
        axis.bar_label(bars, texts, fontsize=8, padding=2)
        axis.margins(x=0.2)
        axis.set_title(f'{name} ({unit})', fontsize=9)
        axis.tick_params(labelsize=8)
    axes[0, 0].invert_yaxis()
    return figure


if __name__ == '__main__':
    main()
