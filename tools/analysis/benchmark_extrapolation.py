#!/usr/bin/env python
"""Accuracy and time against input size, for each of TransNeXt's position biases (the paper's figure 6).

Every image is resized so that its short side has the size, keeping its shape, and tested whole.
"""

import argparse
import copy
import csv
import statistics
import time
from pathlib import Path

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bioattn_mm.checkpoints import check_fit, read_state_dict
from bioattn_mm.cli.bias_mode import BIAS_MODES, set_bias_mode
from bioattn_mm.cli.command_line import parse, run_tool
from bioattn_mm.cli.config import load_config
from bioattn_mm.cli.metrics import choose_metric
from bioattn_mm.errors import InputError

SIZES = (224, 320, 448, 512, 640, 768, 896, 1024)
COLUMNS = ('bias_mode', 'size', 'metric', 'value', 'seconds_per_image')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='Example: python tools/analysis/benchmark_extrapolation.py configs/transnext/upernet_tiny_ade20k.py '
        'iter_160000.pth --out extrapolation',
    )
    parser.add_argument('config', help='config file with a TransNeXt backbone')
    parser.add_argument('checkpoint', help='checkpoint file of the whole model')
    parser.add_argument('--out', required=True, metavar='DIR', help='folder for table.csv and plot.png')
    parser.add_argument('--sizes', type=int, nargs='+', default=SIZES, help='short sides in pixels')
    parser.add_argument(
        '--modes',
        nargs='+',
        choices=BIAS_MODES,
        default=list(BIAS_MODES),
        help='default: all; the linear mode pools to 1/32 of the training size, model.backbone.img_size',
    )
    parser.add_argument('--metric', help='metric to plot; default: mIoU or bbox_mAP')
    return parse(parser)


@run_tool
def main() -> None:
    args = parse_args()
    if min(args.sizes) < 32:
        raise InputError(f'--sizes must be at least 32 pixels, got {min(args.sizes)}')
    out = Path(args.out)
    if (out / 'table.csv').exists():
        raise InputError(f'{out} holds a table already: name another folder for --out')
    # Images of different shapes are tested whole, as `--tta` does, so that the size is what the backbone sees.
    config = load_config(args, ('test_dataloader',), tta=True)
    state_dict = read_state_dict(args.checkpoint)
    out.mkdir(parents=True, exist_ok=True)
    config.work_dir = str(out / 'logs')
    config.launcher = args.launcher
    config.log_level = 'WARNING'

    rows = []
    with Progress() as progress:
        task = progress.add_task('', total=len(args.modes) * len(args.sizes))
        for mode in args.modes:
            for size in args.sizes:
                progress.update(task, description=f'{mode}, {size} pixels')
                rows.append(measure(config, args, state_dict, mode, size))
                write_table(out / 'table.csv', rows)  # whatever happens, what was measured is there
                progress.advance(task)
    plot(out / 'plot.png', rows)
    print_table(rows)
    print(f'{out / "table.csv"}  {out / "plot.png"}')


def measure(
    config: Config, args: argparse.Namespace, state_dict: dict[str, torch.Tensor], mode: str, size: int
) -> dict:
    """Test the checkpoint's weights with one position bias at one size."""
    config = copy.deepcopy(config)
    set_bias_mode(config, mode)
    set_size(config.test_dataloader.dataset.pipeline, size)
    config.experiment_name = f'{mode}_{size}'
    runner = Runner.from_cfg(config)
    check_fit(args.checkpoint, state_dict, runner.model.state_dict())
    runner.model.load_state_dict(state_dict)
    stopwatch = Stopwatch()
    runner.register_hook(stopwatch)
    metrics = runner.test()
    metric = choose_metric(metrics, args.metric)
    values = (mode, size, metric, metrics[metric], statistics.median(stopwatch.seconds))
    return dict(zip(COLUMNS, values, strict=True))


class Stopwatch(Hook):
    """Times of the test steps, without the loading of the images."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def before_test_iter(self, *args: object, **kwargs: object) -> None:
        self.start = self.now()

    def after_test_iter(self, *args: object, **kwargs: object) -> None:
        self.seconds.append(self.now() - self.start)

    @staticmethod
    def now() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()


def set_size(pipeline: list[dict], size: int) -> None:
    """Resize images to a short side, whatever their long side."""
    resizes = [step for step in pipeline if step['type'] == 'Resize']
    if len(resizes) != 1:
        raise InputError(f'the test pipeline must have one Resize, this config has {len(resizes)}')
    resizes[0].update(scale=(100 * size, size), keep_ratio=True)


def write_table(path: Path, rows: list[dict]) -> None:
    with path.open('w', newline='') as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def print_table(rows: list[dict]) -> None:
    table = Table('position bias', 'size', rows[0]['metric'], 'seconds an image')
    for row in rows:
        table.add_row(row['bias_mode'], str(row['size']), f'{row["value"]:.4g}', f'{row["seconds_per_image"]:.3f}')
    Console().print(table)


def plot(path: Path, rows: list[dict]) -> None:
    """Draw the metric and the time against the size, one line for each position bias."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout='constrained')
    for axis, column, label in zip(axes, ('value', 'seconds_per_image'), (rows[0]['metric'], 'seconds an image')):
        for mode in dict.fromkeys(row['bias_mode'] for row in rows):
            points = sorted((row['size'], row[column]) for row in rows if row['bias_mode'] == mode)
            axis.plot(*zip(*points), marker='o', label=mode)
        axis.set(xlabel='short side of the image (pixels)', ylabel=label)
        axis.grid(alpha=0.3)
    axes[0].legend(title='position bias')
    figure.savefig(path, dpi=150)


if __name__ == '__main__':
    main()
