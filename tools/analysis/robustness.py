#!/usr/bin/env python
"""Robustness of trained models against the corruptions of ImageNet-C (Hendrycks and Dietterich, ICLR 2019).

The metric of a model on its test set, whose images are corrupted right after they are loaded, for each corruption
and severity; their mean (mPC), and what part of the metric on the images as they are it is (rPC = mPC / P_clean),
after Michaelis et al. 2019, "Benchmarking robustness in object detection". Each model gets the same images.

Each test is kept when it is done: a call that was ended is gone on with by the same call.
"""

import argparse
import csv
import json
import sys
from itertools import product
from pathlib import Path

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
import numpy as np
from imagecorruptions import get_corruption_names
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from bioattn_mm.analysis.command_line import add_config_options, add_out, config_of, name_of
from bioattn_mm.analysis.robustness import CLEAN, Model, Results, measure_corrupted, summarize
from bioattn_mm.checkpoints import read_state_dict
from bioattn_mm.cli.command_line import run_tool
from bioattn_mm.cli.metrics import choose_metric
from bioattn_mm.datasets.corruption import SEVERITIES

COLUMNS = ('model', 'corruption', 'severity', 'metric', 'value')
SUMMARY = ('clean', 'mPC', 'rPC')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='Examples:\n'
        '  python tools/analysis/robustness.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth '
        '--out robustness\n'
        '  python tools/analysis/robustness.py configs/vars/upernet_rvt_tiny_vars_sd_ade20k.py vars.pth '
        '--compare configs/convit/upernet_tiny_ade20k.py convit.pth --corruptions gaussian_noise fog --severities 3 '
        '--out robustness',
    )
    parser.add_argument('config', help='config file, such as configs/transnext/upernet_tiny_ade20k.py')
    parser.add_argument('checkpoint', help='checkpoint file of the whole model')
    add_out(parser)
    parser.add_argument(
        '--compare',
        nargs=2,
        action='append',
        default=[],
        metavar=('CONFIG', 'CHECKPOINT'),
        help='another model on the same images; once for each model',
    )
    parser.add_argument(
        '--corruptions',
        nargs='+',
        choices=get_corruption_names('all'),
        default=get_corruption_names(),
        metavar='NAME',
        help=f'default: {", ".join(get_corruption_names())}; more: {", ".join(get_corruption_names("validation"))}',
    )
    parser.add_argument(
        '--severities',
        nargs='+',
        type=int,
        choices=SEVERITIES,
        default=list(SEVERITIES),
        metavar='N',
        help='1 to 5 (default: all)',
    )
    parser.add_argument('--metric', help="metric of the config's evaluator (default: mIoU, or the boxes' AP)")
    add_config_options(parser)
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    models = {}
    for path, checkpoint in ((args.config, args.checkpoint), *args.compare):
        config = config_of(args, path, ('test_dataloader',))
        models[name_of(path, models)] = Model(config, checkpoint, read_state_dict(checkpoint))
    out = Path(args.out)
    descriptions = {name: model.describe() for name, model in models.items()}
    results = Results(out / 'results', descriptions, args.corruptions, args.severities)

    measure_all(models, [CLEAN], results, out / 'logs')
    metric = args.metric
    for name in models:
        metric = choose_metric(results.load(name, *CLEAN), metric)
    corrupted = list(product(args.corruptions, args.severities))
    measure_all(models, corrupted, results, out / 'logs')

    # An evaluator that is given no predictions at all reports nothing.
    values = {
        name: {pair: results.load(name, *pair).get(metric, 0.0) for pair in (CLEAN, *corrupted)} for name in models
    }
    summaries = {
        name: summarize(of_model[CLEAN], {pair: value for pair, value in of_model.items() if pair != CLEAN})
        for name, of_model in values.items()
    }
    write(out, metric, values, summaries, descriptions)
    draw(out / 'robustness.png', metric, values, summaries)
    print_tables(metric, values, summaries)
    print('  '.join(str(out / f'robustness.{ending}') for ending in ('csv', 'json', 'png')))


def measure_all(models: dict[str, Model], conditions: list[tuple[str, int]], results: Results, logs: Path) -> None:
    """Do the tests that were not done yet."""
    todo = [(name, *pair) for name, pair in product(models, conditions) if results.load(name, *pair) is None]
    columns = TextColumn('{task.description}'), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    # A console of its own, because what evaluators print goes to a file.
    with Progress(*columns, console=Console(file=sys.stdout), speed_estimate_period=3600) as progress:
        task = progress.add_task('', total=len(todo))
        for number, (name, corruption, severity) in enumerate(todo):
            progress.update(task, description=f'{name}, {corruption} {severity or ""}', completed=number)
            metrics = measure_corrupted(
                models[name], corruption, severity, logs, lambda part: progress.advance(task, part)
            )
            results.save(name, corruption, severity, metrics)
        progress.update(task, completed=len(todo))


def corruptions_of(values: dict[tuple[str, int], float]) -> list[str]:
    return list(dict.fromkeys(corruption for corruption, _ in values if corruption != CLEAN[0]))


def mean_of(values: dict[tuple[str, int], float], corruption: str) -> float:
    """Mean over the severities of a corruption."""
    return float(np.mean([value for (name, _), value in values.items() if name == corruption]))


def write(out: Path, metric: str, values: dict[str, dict], summaries: dict[str, dict], descriptions: dict) -> None:
    with (out / 'robustness.csv').open('w', newline='') as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for name, of_model in values.items():
            writer.writerows((name, *pair, metric, value) for pair, value in of_model.items())
    models = [
        # JSON has no NaN.
        {'model': name, **descriptions[name]}
        | {key: None if value != value else value for key, value in summaries[name].items()}
        | {'corruptions': {corruption: mean_of(of_model, corruption) for corruption in corruptions_of(of_model)}}
        for name, of_model in values.items()
    ]
    (out / 'robustness.json').write_text(json.dumps(dict(metric=metric, models=models), indent=1) + '\n')


def draw(path: Path, metric: str, values: dict[str, dict], summaries: dict[str, dict]) -> None:
    """Draw the metric against the severity, averaged over corruptions, and bars of it for each corruption."""
    corruptions = corruptions_of(next(iter(values.values())))
    width = 4 + 0.3 * len(corruptions) * (1 + len(values) / 2)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(4.5 + width, 4.5), width_ratios=(4.5, width), layout='constrained', sharey=True
    )
    for index, (name, of_model) in enumerate(values.items()):
        severities = sorted({severity for _, severity in of_model})
        means = [np.mean([v for (_, severity), v in of_model.items() if severity == s]) for s in severities]
        label = f'{name}: mPC {summaries[name]["mPC"]:.4g}, rPC {100 * summaries[name]["rPC"]:.3g} %'
        left.plot(severities, means, marker='o', label=label)
        places = np.arange(len(corruptions)) + 0.8 * ((index + 0.5) / len(values) - 0.5)
        right.bar(places, [mean_of(of_model, corruption) for corruption in corruptions], 0.8 / len(values))
        right.axhline(of_model[CLEAN], color=f'C{index}', linestyle=':', linewidth=1)
    left.set(xlabel='severity (0: as they are)', ylabel=metric, xticks=severities)
    left.legend(fontsize=7)
    right.set(title='mean over severities (dotted: images as they are)')
    right.title.set_fontsize(9)
    right.set_xticks(
        range(len(corruptions)), [name.replace('_', ' ') for name in corruptions], rotation=60, ha='right'
    )
    for axis in (left, right):
        axis.grid(axis='y', alpha=0.3)
        axis.tick_params(labelsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def print_tables(metric: str, values: dict[str, dict], summaries: dict[str, dict]) -> None:
    print(f'{metric}: on the images as they are, mean over corruptions and severities (mPC), and the part (rPC)')
    table = Table(Column('model', overflow='fold'), *SUMMARY)
    for name, summary in summaries.items():
        table.add_row(name, *(f'{summary[key]:.4g}' for key in SUMMARY[:2]), f'{100 * summary["rPC"]:.1f} %')
    Console().print(table)
    print(f'{metric}, means over severities')
    table = Table('corruption', *(Column(name, overflow='fold') for name in values))
    for corruption in corruptions_of(next(iter(values.values()))):
        table.add_row(corruption, *(f'{mean_of(of_model, corruption):.4g}' for of_model in values.values()))
    Console().print(table)


if __name__ == '__main__':
    main()
