#!/usr/bin/env python
"""Parameters, FLOPs, activation memory and throughput of models side by side, as the papers' tables have them.

Parameters: all of the model, auxiliary heads and frozen ones included.

FLOPs: multiply-adds, each of which counts one, of the forward pass of one image in eval mode. Convolutions, matrix
products and attention count, whichever operator computes them, the compiled ones included, and so do Fourier
transforms, products of complex numbers and the sampling of deformable attention; norms, activations, softmax,
resizing and element-wise arithmetic do not (bioattn_mm/analysis/flops.py has the formulas). What depends on the size
alone and is kept from image to image in eval mode, such as position biases, is left out: column 'once a size'.

Activation memory: tensors that a training step of a batch keeps for its backward pass, each storage once, without the
parameters.

Throughput: images per second of the pass whose FLOPs are counted, in float32, the median of some passes after one
that warms up.

The weights are random; of two-stage detectors, the regions count that the first stage proposes with them.
"""

import argparse
import csv
import json
import platform
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
import torch
from mmengine.config import Config
from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table

from bioattn_mm.analysis.command_line import (
    add_config_options,
    add_device,
    add_out,
    check_device,
    check_out,
    check_size,
    config_of,
    name_of,
)
from bioattn_mm.analysis.model_stats import (
    Network,
    activation_bytes,
    images_per_second,
    multiply_adds,
    num_parameters,
    random_images,
)
from bioattn_mm.cli.command_line import run_tool
from bioattn_mm.errors import InputError

FILES = ('model_stats.csv', 'model_stats.json', 'model_stats.png')
MEASURES = ('flops', 'memory', 'throughput')
# Columns of the table: title, unit, and the unit's size.
COLUMNS = dict(
    parameters=('parameters', 'M', 1e6),
    backbone_parameters=('of the backbone', 'M', 1e6),
    flops=('FLOPs', 'G', 1e9),
    backbone_flops=('of the backbone', 'G', 1e9),
    flops_of_size=('once a size', 'G', 1e9),
    activation_bytes=('activations', 'MiB', 2**20),
    images_per_second=('throughput', 'images/s', 1),
)
# Those that are drawn.
BARS = ('parameters', 'flops', 'activation_bytes', 'images_per_second')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='Examples:\n'
        '  python tools/analysis/model_stats.py configs/transnext/upernet_tiny_ade20k.py '
        'configs/convit/upernet_tiny_ade20k.py --out stats --size 512 2048 --measure flops\n'
        '  python tools/analysis/model_stats.py configs/*/mask_rcnn_*_coco.py --backbone --size 224 224 --out stats',
    )
    parser.add_argument(
        'configs', nargs='+', metavar='CONFIG', help='config files, such as configs/transnext/upernet_tiny_ade20k.py'
    )
    add_out(parser)
    parser.add_argument(
        '--size',
        type=int,
        nargs=2,
        default=(512, 512),
        metavar=('HEIGHT', 'WIDTH'),
        help='size of the images in pixels, which need not be square (default: 512 512); papers take 512 2048 for '
        'the FLOPs of UperNet, 800 1280 for those of detectors',
    )
    parser.add_argument('--backbone', action='store_true', help='measure the backbones alone')
    parser.add_argument(
        '--measure', nargs='+', choices=MEASURES, default=MEASURES, help='what beside parameters (default: all)'
    )
    parser.add_argument(
        '--batch-size',
        type=int,
        default=2,
        metavar='N',
        help='images at once for memory and throughput (default: 2, those of a GPU in training)',
    )
    parser.add_argument(
        '--repeats', type=int, default=5, metavar='N', help='passes whose median is the throughput (default: 5)'
    )
    add_config_options(parser)
    add_device(parser)
    args = parser.parse_args()
    check_size(args.size)
    check_device(args.device)
    for name in ('batch_size', 'repeats'):
        if getattr(args, name) < 1:
            raise InputError(f'--{name.replace("_", "-")} must be at least 1, got {getattr(args, name)}')
    return args


@run_tool
def main() -> None:
    args = parse_args()
    out = check_out(args.out, FILES)
    configs = {}
    for path in args.configs:
        configs[name_of(path, configs)] = config_of(args, path)

    rows = []
    with Progress() as progress:
        task = progress.add_task('', total=len(configs) * len(args.measure))
        for name, config in configs.items():
            progress.update(task, description=name)
            rows.append(dict(model=name, **measure(config, args, lambda: progress.advance(task))))

    out.mkdir(parents=True, exist_ok=True)
    about = dict(
        part='backbone' if args.backbone else 'whole model',
        size=list(args.size),
        batch_size=args.batch_size,
        device=describe_device(args.device),
        torch=torch.__version__,
    )
    write(out, rows, about)
    title = (
        f'{about["part"]}, {args.size[0]} x {args.size[1]} pixels, batches of {args.batch_size}, {about["device"]}'
    )
    draw(out / 'model_stats.png', rows, title)
    print_table(rows, title)
    print('  '.join(str(out / name) for name in FILES))


def measure(config: Config, args: argparse.Namespace, advance: Callable[[], None]) -> dict:
    """One row of the table."""
    network = Network(config, args.backbone)
    row = dict(parameters=num_parameters(network))
    if not args.backbone:
        row['backbone_parameters'] = num_parameters(network.model.backbone)
    if 'flops' in args.measure:
        counts, row['flops_of_size'] = multiply_adds(network, random_images(1, args.size, 'cpu'))
        row['flops'] = counts['']
        if not args.backbone:
            row['backbone_flops'] = counts['model.backbone']
        advance()
    network.to(args.device)
    images = random_images(args.batch_size, args.size, args.device)
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


def columns_of(rows: list[dict]) -> list[str]:
    return [key for key in COLUMNS if key in rows[0]]


def write(out: Path, rows: list[dict], about: dict) -> None:
    with (out / 'model_stats.csv').open('w', newline='') as file:
        writer = csv.DictWriter(file, ['model', *columns_of(rows)])
        writer.writeheader()
        writer.writerows(rows)
    (out / 'model_stats.json').write_text(json.dumps(dict(about, models=rows), indent=1) + '\n')


def draw(path: Path, rows: list[dict], title: str) -> None:
    """Draw a panel of bars for each measure."""
    keys = [key for key in BARS if key in rows[0]]
    figure, axes = plt.subplots(
        1, len(keys), figsize=(3 + 2.6 * len(keys), 1.4 + 0.4 * len(rows)), squeeze=False, sharey=True,
        layout='constrained',
    )  # fmt: skip
    figure.suptitle(title, fontsize=9)
    names = [row['model'] for row in rows]
    for axis, key in zip(axes[0], keys):
        name, unit, scale = COLUMNS[key]
        bars = axis.barh(names, [row[key] / scale for row in rows], color=[f'C{index}' for index in range(len(rows))])
        axis.bar_label(bars, fmt='%.3g', fontsize=8, padding=2)
        axis.margins(x=0.2)
        axis.set_title(f'{name} ({unit})', fontsize=9)
        axis.tick_params(labelsize=8)
    axes[0, 0].invert_yaxis()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def print_table(rows: list[dict], title: str) -> None:
    print(title)
    keys = columns_of(rows)
    table = Table(
        Column('model', overflow='fold'), *(f'{name}\n({unit})' for name, unit, _ in (COLUMNS[key] for key in keys))
    )
    for row in rows:
        table.add_row(row['model'], *(f'{row[key] / COLUMNS[key][2]:.4g}' for key in keys))
    Console().print(table)


if __name__ == '__main__':
    main()
