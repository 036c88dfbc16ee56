#!/usr/bin/env python
"""Parameters, FLOPs, activation memory and throughput of models side by side, as in the tables of papers.

Parameters: all of the model, including auxiliary heads and frozen parameters.

FLOPs: multiply-adds, each of which counts one, of the forward pass of one image in eval mode. Counted are
convolutions, matrix products and attention, by whichever operator they are computed, Fourier transforms, products of
complex numbers and the sampling in deformable attention; not counted are norms, activations, softmax, resizing and
element-wise arithmetic (bioattn_mm/analysis/flops.py has the formulas). Work that is done once for an image size and
then cached in eval mode, such as position biases, has a column of its own: 'once a size'. 'Of layers' are those of
convolutions and linear layers alone, without the products of queries, keys and values: counters that look only at
modules, such as ptflops, count these.

Activation memory: the tensors that a training step of a batch saves for its backward pass, each storage once,
without the parameters.

Throughput: images per second of the forward pass in float32, the median of several passes after a warm-up pass.

`--table` prints parameters and FLOPs alone, in seconds, and writes no files.

The weights are random; the second stage of a two-stage detector runs on the proposals that the first makes with them.
"""

import argparse
import platform
from collections.abc import Callable

import bioattn_mm.process_settings  # noqa: F401

import torch
from matplotlib.figure import Figure
from mmengine.config import Config
from rich.progress import Progress

from bioattn_mm.analysis.model_stats import (
    DENSE_SIZE,
    Network,
    activation_bytes,
    default_size,
    images_per_second,
    multiply_adds,
    num_parameters,
    random_images,
)
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.reports import Report, print_table
from bioattn_mm.files import unique_name
from bioattn_mm.run_config.config import load_config
from bioattn_mm.run_config.installed import find_configs

FILES = ('model_stats.csv', 'model_stats.json', 'model_stats.png')
MEASURES = ('flops', 'memory', 'throughput')
# Columns of the table: title, unit, and the number that is one unit. Those of the size are printed if it differs.
SIZE = dict(height=('height', 'pixels', 1), width=('width', 'pixels', 1))
COLUMNS = dict(
    parameters=('parameters', 'M', 1e6),
    backbone_parameters=('of the backbone', 'M', 1e6),
    flops=('FLOPs', 'G', 1e9),
    backbone_flops=('of the backbone', 'G', 1e9),
    layer_flops=('of layers', 'G', 1e9),
    flops_of_size=('once a size', 'G', 1e9),
    activation_bytes=('activations', 'MiB', 2**20),
    images_per_second=('throughput', 'images/s', 1),
)
# The columns that are drawn.
BARS = ('parameters', 'flops', 'activation_bytes', 'images_per_second')


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'analysis/model_stats.py configs/transnext/upernet_tiny_ade20k.py configs/convit/upernet_tiny_ade20k.py '
        '--out stats --size 512 2048 --measure flops',
        'analysis/model_stats.py configs/*/mask_rcnn_*_coco.py --backbone --size 224 224 --out stats',
        'analysis/model_stats.py configs/convit/convit-small-plus_8xb64_in1k.py configs/convit/ablations --table',
    )
    parser.add_argument(
        'configs',
        nargs='+',
        metavar='CONFIG',
        help='config files, such as configs/transnext/upernet_tiny_ade20k.py, and folders of them, such as '
        'configs/convit/ablations',
    )
    parser.add_out(', '.join(FILES), unless='--table')
    parser.add_argument(
        '--table', action='store_true', help='only print parameters and FLOPs; files are written where --out says so'
    )
    parser.add_size(
        None,
        'size of the images in pixels, which need not be square; papers take 512 2048 for the FLOPs of UperNet, '
        '800 1280 for those of detectors',
        otherwise='that of the test images of a classifier, such as 224 224, else {} {}'.format(*DENSE_SIZE),
    )
    parser.add_argument('--backbone', action='store_true', help='measure only the backbones')
    parser.add_argument(
        '--measure',
        nargs='+',
        choices=MEASURES,
        help='measures besides parameters (default: all, with --table flops)',
    )
    parser.add_integer(
        '--batch-size',
        minimum=1,
        default=2,
        metavar='N',
        help='images in a batch for memory and throughput (default: 2, the batch of a GPU in training)',
    )
    parser.add_integer(
        '--repeats',
        minimum=1,
        default=5,
        metavar='N',
        help='number of passes whose median is the throughput (default: 5)',
    )
    parser.add_config_options()
    parser.add_device()
    args = parser.parse_args()
    if not (args.out or args.table):
        parser.error('say with --out DIR where the files go, or print the table alone with --table')
    args.measure = args.measure or (['flops'] if args.table else MEASURES)
    return args


@run_tool
def main() -> None:
    args = parse_args()
    report = Report(args.out, *FILES) if args.out else None
    configs = {}
    for path in (path for name in args.configs for path in find_configs(name)):
        configs[unique_name(path, configs)] = load_config(path, mini=args.mini, cfg_options=args.cfg_options)

    rows = []
    with Progress() as progress:
        task = progress.add_task('', total=len(configs) * len(args.measure))
        for name, config in configs.items():
            progress.update(task, description=name)
            measured = measure(config, args, lambda: progress.advance(task))
            rows.append({'model': name} | {key: measured[key] for key in SIZE | COLUMNS if key in measured})

    about = dict(
        part='backbone' if args.backbone else 'whole model',
        batch_size=args.batch_size,
        device=describe_device(args.device),
        torch=torch.__version__,
    )
    sizes = {f'{row["height"]} x {row["width"]}' for row in rows}
    pixels = f'{sizes.pop()} pixels' if len(sizes) == 1 else 'images of several sizes'
    title = f'{about["part"]}, {pixels}'
    if args.measure != ['flops']:
        title += f', batches of {args.batch_size}, {about["device"]}'
    if report:
        report.write_csv('model_stats.csv', rows)
        report.write_json('model_stats.json', dict(about, models=rows))
        report.write_figure('model_stats.png', draw(rows, title))
    print_stats(rows, title)
    if report:
        print(report)


def measure(config: Config, args: argparse.Namespace, advance: Callable[[], None]) -> dict:
    """The values of one row, by column."""
    network = Network(config, args.backbone)
    size = args.size or default_size(config)
    row = dict(zip(SIZE, size), parameters=num_parameters(network))
    if not args.backbone:
        row['backbone_parameters'] = num_parameters(network.model.backbone)
    if 'flops' in args.measure:
        row |= multiply_adds(network, random_images(1, size, 'cpu', network.in_channels))
        advance()
    network.to(args.device)
    images = random_images(args.batch_size, size, args.device, network.in_channels)
    if 'throughput' in args.measure:
        row['images_per_second'] = images_per_second(network, images, args.repeats)
        advance()
    if 'memory' in args.measure:
        row['activation_bytes'] = activation_bytes(network, images)
        advance()
    return row


def describe_device(device: str) -> str:
    if torch.device(device).type == 'cuda':
        return torch.cuda.get_device_name(device)
    return f'{platform.processor() or platform.machine()}, {torch.get_num_threads()} thread(s)'


def draw(rows: list[dict], title: str) -> Figure:
    """Draw a panel of bars for each measure."""
    keys = [key for key in BARS if key in rows[0]]
    figure = Figure(figsize=(3 + 2.6 * len(keys), 1.4 + 0.4 * len(rows)), layout='constrained')
    axes = figure.subplots(1, len(keys), squeeze=False, sharey=True)
    figure.suptitle(title, fontsize=9)
    names = [row['model'] for row in rows]
    for axis, key in zip(axes[0], keys):
        name, unit, scale = COLUMNS[key]
        values = [row[key] / scale for row in rows]
        bars = axis.barh(names, values, color=[f'C{index}' for index in range(len(rows))])
        texts = [f'{value:.3g}' if value < 1000 else f'{value:.0f}' for value in values]
        axis.bar_label(bars, texts, fontsize=8, padding=2)
        axis.margins(x=0.2)
        axis.set_title(f'{name} ({unit})', fontsize=9)
        axis.tick_params(labelsize=8)
    axes[0, 0].invert_yaxis()
    return figure


def print_stats(rows: list[dict], title: str) -> None:
    columns = [key for key in COLUMNS if key in rows[0]]
    if len({(row['height'], row['width']) for row in rows}) > 1:
        columns = [*SIZE, *columns]
    titles = (f'{name}\n({unit})' for name, unit, _ in ((SIZE | COLUMNS)[key] for key in columns))
    cells = [(row['model'], *(f'{row[key] / (SIZE | COLUMNS)[key][2]:.4g}' for key in columns)) for row in rows]
    print_table(title, ('model', *titles), cells)


if __name__ == '__main__':
    main()
