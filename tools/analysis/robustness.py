#!/usr/bin/env python
"""Robustness of trained models against the corruptions of ImageNet-C (Hendrycks and Dietterich, ICLR 2019).

Tests each model on its test set, with the images corrupted right after they are loaded, for each corruption and
severity. Reports the mean of the metric over them (mPC), and its ratio to the metric on the images as they are (rPC =
mPC / P_clean), after Michaelis et al. 2019, "Benchmarking robustness in object detection". All models get the same
images.

The result of each test is kept as soon as it is done: after an interruption, the same call goes on.
"""

import argparse
import sys
from itertools import product
from pathlib import Path

import numpy as np
from imagecorruptions import get_corruption_names
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from bioattn_mm.analysis.evaluation import TrainedModel, choose_metric
from bioattn_mm.analysis.robustness import CLEAN, Results, measure_corrupted, summarize
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.config import load_config
from bioattn_mm.cli.reports import Report, print_table, unique_name
from bioattn_mm.datasets.corruption import SEVERITIES

FILES = ('robustness.csv', 'robustness.json', 'robustness.png')


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'analysis/robustness.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth --out robustness',
        'analysis/robustness.py configs/vars/upernet_rvt_tiny_vars_sd_ade20k.py vars.pth '
        '--compare configs/convit/upernet_tiny_ade20k.py convit.pth --corruptions gaussian_noise fog --severities 3 '
        '--out robustness',
    )
    parser.add_config()
    parser.add_checkpoint()
    parser.add_argument(
        '--out', required=True, metavar='DIR', help='folder for all results; those of an earlier call are kept'
    )
    parser.add_argument(
        '--compare',
        nargs=2,
        action='append',
        default=[],
        metavar=('CONFIG', 'CHECKPOINT'),
        help='another model on the same images; repeat the option for more models',
    )
    parser.add_argument(
        '--corruptions',
        nargs='+',
        choices=get_corruption_names('all'),
        default=get_corruption_names(),
        metavar='NAME',
        help=f'corruptions (default: {", ".join(get_corruption_names())}; also: '
        f'{", ".join(get_corruption_names("validation"))})',
    )
    parser.add_argument(
        '--severities',
        nargs='+',
        type=int,
        choices=SEVERITIES,
        default=list(SEVERITIES),
        metavar='N',
        help='severities, 1 to 5 (default: all)',
    )
    parser.add_argument('--metric', help="metric of the config's evaluator (default: mIoU, or the boxes' AP)")
    parser.add_config_options()
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    models = {}
    for path, checkpoint in ((args.config, args.checkpoint), *args.compare):
        options = dict(mini=args.mini, cfg_options=args.cfg_options)
        config = load_config(path, dataloaders=('test_dataloader',), **options)
        models[unique_name(path, models)] = TrainedModel.read(config, checkpoint)
    report = Report(args.out, *FILES, overwrite=True)
    logs = report.path('logs')
    results = Results(report.path('results'), models, args.corruptions, args.severities)

    measure_all(models, [CLEAN], results, logs)
    metric = args.metric
    for name in models:
        metric = choose_metric(results.load(name, *CLEAN), metric)
    conditions = list(product(args.corruptions, args.severities))
    measure_all(models, conditions, results, logs)

    rows, values, means, summaries = [], {}, {}, {}
    for name in models:
        # An evaluator that gets no predictions reports no metrics.
        values[name] = {pair: results.load(name, *pair).get(metric, 0.0) for pair in (CLEAN, *conditions)}
        means[name] = {
            corruption: float(np.mean([values[name][corruption, severity] for severity in args.severities]))
            for corruption in args.corruptions
        }
        summaries[name] = summarize(values[name][CLEAN], {pair: values[name][pair] for pair in conditions})
        for (corruption, severity), value in values[name].items():
            rows.append(dict(model=name, corruption=corruption, severity=severity, metric=metric, value=value))
    about = [dict(model=name, **results.models[name], **summaries[name], corruptions=means[name]) for name in models]
    report.write_csv('robustness.csv', rows)
    report.write_json('robustness.json', dict(metric=metric, models=about))
    report.write_figure('robustness.png', draw(metric, values, means, summaries))

    title = f'{metric}: clean images, mean over corruptions and severities (mPC), ratio (rPC)'
    cells = (
        (name, f'{summary["clean"]:.4g}', f'{summary["mPC"]:.4g}', f'{100 * summary["rPC"]:.1f} %')
        for name, summary in summaries.items()
    )
    print_table(title, ('model', 'clean', 'mPC', 'rPC'), cells)
    cells = ((corruption, *(f'{means[name][corruption]:.4g}' for name in models)) for corruption in args.corruptions)
    print_table(f'{metric}, means over severities', ('corruption', *models), cells)
    print(report)


def measure_all(
    models: dict[str, TrainedModel], conditions: list[tuple[str, int]], results: Results, logs: Path
) -> None:
    """Run the tests that have no results yet."""
    todo = [(name, *pair) for name, pair in product(models, conditions) if results.load(name, *pair) is None]
    columns = TextColumn('{task.description}'), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    # On stdout as it is now: during a test it is redirected to a file, for what evaluators print.
    with Progress(*columns, console=Console(file=sys.stdout), speed_estimate_period=3600) as progress:
        task = progress.add_task('', total=len(todo))
        for number, (name, corruption, severity) in enumerate(todo):
            progress.update(task, description=f'{name}, {corruption} {severity or ""}', completed=number)
            metrics = measure_corrupted(
                models[name], corruption, severity, logs, lambda part: progress.advance(task, part)
            )
            results.save(name, corruption, severity, metrics)
        progress.update(task, completed=len(todo))


def draw(metric: str, values: dict[str, dict], means: dict[str, dict], summaries: dict[str, dict]) -> Figure:
    """Draw the metric over the severity (mean over corruptions) and for each corruption (mean over severities)."""
    corruptions = list(next(iter(means.values())))
    width = 4 + 0.3 * len(corruptions) * (1 + len(values) / 2)
    figure = Figure(figsize=(4.5 + width, 4.5), layout='constrained')
    left, right = figure.subplots(1, 2, width_ratios=(4.5, width), sharey=True)
    for index, (name, of_model) in enumerate(values.items()):
        severities = sorted({severity for _, severity in of_model})
        curve = [np.mean([v for (_, severity), v in of_model.items() if severity == s]) for s in severities]
        label = f'{name}: mPC {summaries[name]["mPC"]:.4g}, rPC {100 * summaries[name]["rPC"]:.3g} %'
        left.plot(severities, curve, marker='o', label=label)
        places = np.arange(len(corruptions)) + 0.8 * ((index + 0.5) / len(values) - 0.5)
        right.bar(places, list(means[name].values()), 0.8 / len(values))
        right.axhline(of_model[CLEAN], color=f'C{index}', linestyle=':', linewidth=1)
    left.set(xlabel='severity (0: as they are)', ylabel=metric, xticks=severities)
    left.legend(fontsize=7)
    right.set_title('mean over severities (dotted: images as they are)', fontsize=9)
    labels = [name.replace('_', ' ') for name in corruptions]
    right.set_xticks(range(len(labels)), labels, rotation=60, ha='right')
    for axis in (left, right):
        axis.grid(axis='y', alpha=0.3)
        axis.tick_params(labelsize=8)
    return figure


if __name__ == '__main__':
    main()
