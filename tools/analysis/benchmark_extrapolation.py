#!/usr/bin/env python
"""Accuracy and time over the input size, for each of TransNeXt's position biases (TransNeXt, table 5 and figure 6).

Detectors and segmentors: every image is tested whole, resized so that its short side has the size and its aspect
ratio is kept. Classifiers, as TransNeXt's authors do: below 384 pixels a square at the centre of the image, 224 / 256
of its short side, and from 384 pixels the whole image, stretched to a square.
"""

import argparse
import copy
import statistics
import sys

import bioattn_mm.process_settings  # noqa: F401

from matplotlib.figure import Figure
from mmengine.hooks import Hook
from mmengine.runner import Runner
from rich.console import Console
from rich.progress import Progress

from bioattn_mm.analysis.evaluation import TrainedModel, choose_metric
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.reports import Report, print_table
from bioattn_mm.errors import InputError
from bioattn_mm.models.backbones.transnext import BIAS_MODES
from bioattn_mm.run_config.config import load_config, set_bias_mode
from bioattn_mm.run_config.pipelines import set_crop_size
from bioattn_mm.run_config.runner import now

FILES = ('table.csv', 'plot.png')
SIZES = (224, 320, 448, 512, 640, 768, 896, 1024)


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'analysis/benchmark_extrapolation.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth '
        '--out extrapolation',
    )
    parser.add_config()
    parser.add_checkpoint()
    parser.add_out(', '.join(FILES))
    parser.add_integer(
        '--sizes',
        minimum=32,
        nargs='+',
        default=SIZES,
        help=f'short sides, of classifiers crops, in pixels (default: {" ".join(map(str, SIZES))})',
    )
    parser.add_argument(
        '--modes',
        nargs='+',
        choices=BIAS_MODES,
        default=BIAS_MODES,
        help='position biases (default: all); linear pools to 1/32 of the training size, model.backbone.img_size',
    )
    parser.add_argument('--metric', help="metric of the config's evaluator (default: mIoU, AP of boxes or top-1)")
    parser.add_config_options()
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    report = Report(args.out, *FILES)
    # As with --tta, images are tested whole: the backbone then sees the size that is asked for.
    config = load_config(
        args.config, mini=args.mini, cfg_options=args.cfg_options, dataloaders=('test_dataloader',), tta=True
    )
    model = TrainedModel.read(config, args.checkpoint)
    config.work_dir = str(report.path('logs'))

    rows = []
    # On stdout as it is now: during a test it is redirected to a file, for what evaluators print.
    with Progress(console=Console(file=sys.stdout)) as progress:
        task = progress.add_task('', total=len(args.modes) * len(args.sizes))
        for mode in args.modes:
            for size in args.sizes:
                progress.update(task, description=f'{mode}, {size} pixels')
                rows.append(measure(model, mode, size, args.metric))
                report.write_csv('table.csv', rows)  # now, so that an interruption loses nothing
                progress.advance(task)
    report.write_figure('plot.png', draw(rows))
    cells = (
        (row['bias_mode'], row['size'], f'{row["value"]:.4g}', f'{row["seconds_per_image"]:.3f}') for row in rows
    )
    title = f'{rows[0]["metric"]} of {args.checkpoint}'
    print_table(title, ('position bias', 'size', rows[0]['metric'], 'seconds an image'), cells)
    print(report)


def measure(model: TrainedModel, mode: str, size: int, metric: str | None) -> dict:
    """Test a model with one position bias at one size: a row of the table."""
    config = copy.deepcopy(model.config)
    set_bias_mode(config, mode)
    resize = set_crop_size if config.default_scope == 'mmpretrain' else set_size
    resize(config.test_dataloader.dataset.pipeline, size)
    config.experiment_name = f'{mode}_{size}'
    stopwatch = Stopwatch()
    metrics = model.test(config, stopwatch)
    metric = choose_metric(metrics, metric)
    seconds = statistics.median(stopwatch.seconds)
    return dict(bias_mode=mode, size=size, metric=metric, value=metrics[metric], seconds_per_image=seconds)


class Stopwatch(Hook):
    """Measures the time of each test step, without loading the images.

    Attributes:
        seconds: The times in seconds, each divided by the number of images.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def before_test_iter(self, *args: object, **kwargs: object) -> None:
        self.start = now()

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: object, outputs: list) -> None:
        self.seconds.append((now() - self.start) / len(outputs))


def set_size(pipeline: list[dict], size: int) -> None:
    """Resize images so that their short side has a size, whatever their long side has then."""
    resizes = [step for step in pipeline if step['type'] == 'Resize']
    if len(resizes) != 1:
        raise InputError(f'the test pipeline must have one Resize, this config has {len(resizes)}')
    resizes[0].update(scale=(100 * size, size), keep_ratio=True)


def draw(rows: list[dict]) -> Figure:
    """Draw the metric and the time over the size, with a line for each position bias."""
    figure = Figure(figsize=(10, 4), layout='constrained')
    axes = figure.subplots(1, 2)
    for axis, column, label in zip(axes, ('value', 'seconds_per_image'), (rows[0]['metric'], 'seconds an image')):
        for mode in dict.fromkeys(row['bias_mode'] for row in rows):
            points = sorted((row['size'], row[column]) for row in rows if row['bias_mode'] == mode)
            axis.plot(*zip(*points), marker='o', label=mode)
        axis.set(xlabel='short side of the image (pixels)', ylabel=label)
        axis.grid(alpha=0.3)
    axes[0].legend(title='position bias')
    return figure


if __name__ == '__main__':
    main()
