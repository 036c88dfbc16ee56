#!/usr/bin/env python
"""Robustness of trained models to the corruptions of ImageNet-C, or to adversarial attacks.

Corruptions (Hendrycks and Dietterich, ICLR 2019): each model is tested on its test set for each corruption and
severity. You get the mean of the metric over them (mPC) and its ratio to the metric on clean images (rPC = mPC /
P_clean), after Michaelis et al. 2019, "Benchmarking robustness in object detection"; for classifiers also the mCE,
the errors in percent of AlexNet's. Images are corrupted right after loading; for classifiers after the crop, or with
--imagenet-c read from the files of ImageNet-C.

Attacks (--attack): each classifier or segmentor is tested on adversarial images of its test set for each attack and
epsilon: white-box, untargeted, in the L-infinity ball, after resizing and before normalisation.

--vary tests the models at several values of a setting, and plots the means over the corruptions (VARS, figure 6).

All models get the same images. Each result is kept as soon as it is there: repeat the call to continue after an
interruption.
"""

import argparse
import copy
from itertools import product
from pathlib import Path

import bioattn_mm.cli.threads_and_memory  # noqa: F401

import numpy as np
from imagecorruptions import get_corruption_names
from matplotlib.figure import Figure
from mmengine.config import Config

from bioattn_mm.analysis.attacks import ATTACKS, part_of_range
from bioattn_mm.analysis.evaluation import TrainedModel, choose_metric
from bioattn_mm.analysis.robustness import (
    CLEAN,
    Attacks,
    Condition,
    Corruptions,
    Results,
    file_name,
    summarize,
)
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.reports import Report, print_table, progress_of_tests
from bioattn_mm.data.corruption import SEVERITIES
from bioattn_mm.errors import InputError
from bioattn_mm.runtime.files import unique_name
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.model_check import model_of
from bioattn_mm.training.config.pipelines import find_datasets

FILES = ('robustness.csv', 'robustness.json', 'robustness.png')
# Two configs test on the same images if these entries of their datasets are equal.
NAMING_IMAGES = ('data_root', 'ann_file', 'data_prefix', 'split')


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'analysis/robustness.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth --out robustness',
        'analysis/robustness.py configs/vars/upernet_rvt_tiny_vars_sd_ade20k.py vars.pth '
        '--compare configs/convit/upernet_tiny_ade20k.py convit.pth --corruptions gaussian_noise fog --severities 3 '
        '--out robustness',
        'analysis/robustness.py configs/transnext/transnext-micro_8xb128_in1k.py transnext_micro_224_1k.pth '
        '--attack fgsm pgd --epsilon 1/255 4/255 --out attacks',
        'analysis/robustness.py configs/vars/rvt-tiny-vars-d_8xb128_in1k.py vars.pth '
        '--vary model.backbone.num_steps 1 3 5 7 --out steps',
    )
    parser.add_shared('config', 'checkpoint')
    help = 'folder for all results; those of an earlier call are kept'
    parser.add_argument('--out', required=True, metavar='DIR', help=help)
    help = 'another model to test on the same images; repeat the option for more'
    names = ('CONFIG', 'CHECKPOINT')
    parser.add_argument('--compare', nargs=2, action='append', default=[], metavar=names, help=help)
    usual, others = (get_corruption_names(subset) for subset in ('common', 'validation'))
    help = f'corruptions (default: the {len(usual)} of ImageNet-C; also {", ".join(others)})'
    parser.add_argument('--corruptions', nargs='+', choices=get_corruption_names('all'), metavar='NAME', help=help)
    help = 'severities, 1 to 5 (default: all)'
    parser.add_argument('--severities', nargs='+', type=int, choices=SEVERITIES, metavar='N', help=help)
    help = 'take the files of ImageNet-C, DIR/CORRUPTION/SEVERITY, for classifiers of ImageNet-1k'
    parser.add_argument('--imagenet-c', metavar='DIR', help=help)
    help = 'key of a number in the configs, and the values to test each model at'
    parser.add_argument('--vary', nargs='+', metavar='KEY', help=help)
    help = 'attack the models instead of corrupting images: fgsm (one step), pgd (several, random start)'
    parser.add_argument('--attack', nargs='+', choices=ATTACKS, metavar='NAME', help=help)
    help = 'how far an attack may change a pixel, as fractions of its range, such as 1/255 0.01 (default: 1/255)'
    parser.add_argument('--epsilon', nargs='+', metavar='E', help=help)
    parser.add_integer('--steps', minimum=1, metavar='N', help='steps of pgd (default: 5)')
    parser.add_shared('--metric')
    parser.add_config_options()
    return parser.parse_args()


def read_study(args: argparse.Namespace) -> Corruptions | Attacks:
    """What is to be done to the images."""
    if args.epsilon and not args.attack:
        raise InputError('--epsilon is an option of --attack: add that')
    if args.steps and 'pgd' not in (args.attack or ()):
        raise InputError('--steps is an option of --attack pgd: add that')
    if not args.attack:
        names, severities = args.corruptions or get_corruption_names(), args.severities or list(SEVERITIES)
        return Corruptions(names, severities, args.imagenet_c)
    if args.corruptions or args.severities or args.imagenet_c or args.vary:
        raise InputError('--attack takes no corruptions: measure them by another call')
    epsilons = [f'{part_of_range(text):g}/255' for text in args.epsilon or ('1/255',)]
    return Attacks(args.attack, epsilons, args.steps or 5)


@run_tool
def main() -> None:
    args = parse_args()
    study = read_study(args)
    models, places = read_models(args, study)
    report = Report(args.out, *FILES, overwrite=True)
    logs = report.path('logs')
    results = Results(report.path('results'), models, study.settings)

    measure_all(models, study, [CLEAN], results, logs)
    metric = args.metric
    for name in models:
        metric = choose_metric(results.load(name, CLEAN), metric)
    measure_all(models, study, study.conditions, results, logs)
    # An evaluator that gets no predictions reports no metrics.
    values = {
        name: {pair: results.load(name, pair).get(metric, 0.0) for pair in (CLEAN, *study.conditions)}
        for name in models
    }
    kind, level = ('attack', 'epsilon') if args.attack else ('corruption', 'severity')
    rows = [
        {'model': name, kind: condition[0], level: condition[1], 'metric': metric, 'value': value}
        for name, of_model in values.items()
        for condition, value in of_model.items()
    ]
    report.write_csv('robustness.csv', rows)
    if args.attack:
        write_attacks(report, metric, study, values, results)
    else:
        on_imagenet = {
            name: metric == 'accuracy/top1'
            and all(dataset['type'] == 'ImageNet' for dataset in find_datasets(model.config.test_dataloader))
            for name, model in models.items()
        }
        write_corruptions(report, metric, study, values, results, on_imagenet, (args.vary or [''])[0], places)
    print(report)


def read_models(
    args: argparse.Namespace, study: Corruptions | Attacks
) -> tuple[dict[str, TrainedModel], dict[str, float]]:
    """The models by name, with `--vary` one for each value, and the value of each.

    Raises:
        InputError: A model or its images do not fit the study, so that no test is found to be impossible after hours.
    """
    models, places, names = {}, {}, []
    key, *values = args.vary or [None]
    for path, checkpoint in ((args.config, args.checkpoint), *args.compare):
        name = unique_name(path, names)
        names.append(name)
        for value in [*map(number_of, values)] or [None]:
            options = dict(args.cfg_options or {}) | ({} if value is None else {key: value})
            config = load_config(path, mini=args.mini, cfg_options=options, dataloaders=('test_dataloader',))
            for condition in study.conditions:
                study.change(copy.deepcopy(config), *condition)
            of_value = name if value is None else f'{name}, {value:g}'
            models[of_value] = TrainedModel.read(config, checkpoint)
            models[of_value].weights_for(model_of(config))
            if key:
                places[of_value] = setting_of(config, key)
        if images_of(config) != images_of(next(iter(models.values())).config):
            images = '; '.join(images_of(config))
            print(f'{name} is tested on {images}: make sure that all models get the same images')
    return models, places


def images_of(config: Config) -> list[str]:
    """Which images a config tests on, as it names them."""
    return [
        ' '.join(f'{key}={dataset[key]}' for key in NAMING_IMAGES if dataset.get(key))
        for dataset in find_datasets(config.test_dataloader)
    ]


def number_of(text: str) -> float:
    """A value of `--vary`."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise InputError(f'--vary takes a key and numbers, got {text}') from None


def setting_of(config: Config, key: str) -> float:
    """A number in a config by its dotted key."""
    value = config.to_dict()
    for part in key.split('.'):
        value = value.get(part) if isinstance(value, dict) else None
    if not isinstance(value, (int, float)):
        raise InputError(f'--vary {key}: {config.filename} has no such number, so name values')
    return value


def measure_all(
    models: dict[str, TrainedModel],
    study: Corruptions | Attacks,
    conditions: list[Condition],
    results: Results,
    logs: Path,
) -> None:
    """Run the tests that have no results yet."""
    todo = [pair for pair in product(models, conditions) if results.load(*pair) is None]
    with progress_of_tests() as progress:
        task = progress.add_task('', total=len(todo))
        for name, condition in todo:
            progress.update(task, description=f'{name}, {file_name(condition)}')
            config = copy.deepcopy(models[name].config)
            hooks = [] if condition == CLEAN else study.change(config, *condition)
            config.work_dir, config.experiment_name = str(logs), file_name(condition)
            results.save(name, condition, models[name].test(config, *hooks))
            progress.advance(task)


def write_corruptions(
    report: Report,
    metric: str,
    study: Corruptions,
    values: dict[str, dict[Condition, float]],
    results: Results,
    on_imagenet: dict[str, bool],
    key: str,
    places: dict[str, float],
) -> None:
    """Write and print a metric under corruption, and draw it, over a setting that has a value for each model, too."""
    means = {
        name: {
            corruption: float(np.mean([of_model[corruption, level] for level in study.levels]))
            for corruption in study.names
        }
        for name, of_model in values.items()
    }
    summaries = {
        name: summarize(of_model[CLEAN], {pair: of_model[pair] for pair in study.conditions}, on_imagenet[name])
        for name, of_model in values.items()
    }
    about = [dict(model=name, **results.models[name], **summaries[name], corruptions=means[name]) for name in values]
    report.write_json('robustness.json', dict(metric=metric, imagenet_c=study.imagenet_c, models=about))
    report.write_figure('robustness.png', draw_corruptions(metric, values, means, summaries, key, places))

    title = f'{metric}: clean images, mean over corruptions and severities (mPC), ratio (rPC)'
    columns = ['clean', 'mPC', 'rPC']
    if any('mCE' in summary for summary in summaries.values()):
        title += ", errors in percent of AlexNet's (mCE)"
        columns.append('mCE')
    cells = []
    for name, summary in summaries.items():
        error = f'{summary["mCE"]:.1f} %' if 'mCE' in summary else ''
        of_model = f'{summary["clean"]:.4g}', f'{summary["mPC"]:.4g}', f'{100 * summary["rPC"]:.1f} %', error
        cells.append((name, *of_model[: len(columns)]))
    print_table(title, ('model', *columns), cells)
    cells = ((corruption, *(f'{means[name][corruption]:.4g}' for name in values)) for corruption in study.names)
    print_table(f'{metric}, means over severities', ('corruption', *values), cells)


def write_attacks(
    report: Report, metric: str, study: Attacks, values: dict[str, dict[Condition, float]], results: Results
) -> None:
    """Write and print a metric under attack, and draw it."""
    about = []
    for name, of_model in values.items():
        attacks = {attack: {level: of_model[attack, level] for level in study.levels} for attack in study.names}
        about.append(dict(model=name, **results.models[name], clean=of_model[CLEAN], attacks=attacks))
    report.write_json('robustness.json', dict(metric=metric, **study.settings, models=about))
    report.write_figure('robustness.png', draw_attacks(metric, study, values))
    conditions = (CLEAN, *study.conditions)
    cells = ((*pair, *(f'{of_model[pair]:.4g}' for of_model in values.values())) for pair in conditions)
    print_table(f'{metric} under attack', ('attack', 'epsilon', *values), cells)


def draw_corruptions(
    metric: str,
    values: dict[str, dict[Condition, float]],
    means: dict[str, dict[str, float]],
    summaries: dict[str, dict[str, float]],
    key: str,
    places: dict[str, float],
) -> Figure:
    """Draw the metric over the severity (mean over corruptions) and for each corruption (mean over severities).

    A setting that is varied has a third panel, where the means are drawn over it.
    """
    labels = [name.replace('_', ' ') for name in next(iter(means.values()))]
    widths = (4.5, 4 + 0.3 * len(labels) * (1 + len(values) / 2), *([3.5] if places else []))
    figure = Figure(figsize=(sum(widths), 4.5), layout='constrained')
    left, right, *third = axes = figure.subplots(1, len(widths), width_ratios=widths, sharey=True)
    for axis in third:
        for label, part in (('mean over corruptions', 'mPC'), ('images as they are', 'clean')):
            points = sorted((places[name], summary[part]) for name, summary in summaries.items())
            axis.plot(*zip(*points), 'o-', label=label)
        axis.set(xlabel=key, xticks=sorted(places.values()))
        axis.legend(fontsize=7)
    for index, (name, of_model) in enumerate(values.items()):
        of_severities = {}
        for (_, severity), value in of_model.items():
            of_severities.setdefault(severity, []).append(value)
        severities = sorted(of_severities)
        curve = [np.mean(of_severities[severity]) for severity in severities]
        label = f'{name}: mPC {summaries[name]["mPC"]:.4g}, rPC {100 * summaries[name]["rPC"]:.3g} %'
        left.plot(severities, curve, marker='o', label=label)
        bars = np.arange(len(labels)) + 0.8 * ((index + 0.5) / len(values) - 0.5)
        right.bar(bars, list(means[name].values()), 0.8 / len(values))
        right.axhline(of_model[CLEAN], color=f'C{index}', linestyle=':', linewidth=1)
    left.set(xlabel='severity (0: as they are)', ylabel=metric, xticks=severities)
    left.legend(fontsize=7)
    right.set_title('mean over severities (dotted: images as they are)', fontsize=9)
    right.set_xticks(range(len(labels)), labels, rotation=60, ha='right')
    for axis in axes:
        axis.grid(axis='y', alpha=0.3)
        axis.tick_params(labelsize=8)
    return figure


def draw_attacks(metric: str, study: Attacks, values: dict[str, dict]) -> Figure:
    """Draw the metric over epsilon, with a line for each model and attack that starts at the images as they are."""
    figure = Figure(figsize=(6, 4.5), layout='constrained')
    axis = figure.subplots()
    places = {level: float(level.removesuffix('/255')) for level in study.levels}
    for index, (name, of_model) in enumerate(values.items()):
        for attack, style in zip(study.names, ('o-', 's--')):
            points = sorted((places[level], of_model[attack, level]) for level in study.levels)
            x, y = zip((0, of_model[CLEAN]), *points)
            axis.plot(x, y, style, color=f'C{index}', label=f'{name}, {attack}')
    axis.set(xlabel='epsilon in pixel values of 0 to 255 (0: images as they are)', ylabel=metric)
    axis.legend(fontsize=7)
    axis.grid(axis='y', alpha=0.3)
    return figure


if __name__ == '__main__':
    main()
