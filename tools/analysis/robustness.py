#!/usr/bin/env python
"""Robustness of trained models against the corruptions of ImageNet-C, or against adversarial attacks.

Corruptions (Hendrycks and Dietterich, ICLR 2019): tests each model on its test set, with the images corrupted, for
each corruption and severity. Reports the mean of the metric over them (mPC), and its ratio to the metric on images
as they are (rPC = mPC / P_clean), after Michaelis et al. 2019, "Benchmarking robustness in object detection"; of
classifiers also the mCE, errors in percent of AlexNet's. Detectors and segmentors get images that are corrupted right
after they are loaded; classifiers get them corrupted after the crop, or with --imagenet-c as the files of ImageNet-C.

Attacks (--attack): tests each classifier or segmentor on adversarial images of its test set, for each attack and
epsilon: white-box, untargeted, in the L-infinity ball, after resizing and before normalisation.

With --vary the models are tested with several values of a setting, and the means over the corruptions are drawn over
it (VARS, figure 6).

All models get the same images. The result of each test is kept as soon as it is done: after an interruption, the same
call goes on.
"""

import argparse
import copy
import functools
import sys
from itertools import product
from pathlib import Path

import bioattn_mm.process_settings  # noqa: F401

import numpy as np
from imagecorruptions import get_corruption_names
from matplotlib.figure import Figure
from mmengine.config import Config
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from bioattn_mm.analysis.attacks import part_of_range
from bioattn_mm.analysis.evaluation import TrainedModel, choose_metric
from bioattn_mm.analysis.robustness import CLEAN, Attacks, Condition, Corruptions, Results, measure, summarize
from bioattn_mm.cli.command_line import AtLeast, ToolParser, run_tool
from bioattn_mm.cli.reports import Report, print_table
from bioattn_mm.datasets.corruption import SEVERITIES
from bioattn_mm.errors import InputError
from bioattn_mm.files import unique_name
from bioattn_mm.run_config.config import load_config
from bioattn_mm.run_config.imagenet import tests_imagenet
from bioattn_mm.run_config.model_check import model_of
from bioattn_mm.run_config.pipelines import find_datasets

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
    add_corruptions(parser)
    add_attacks(parser)
    parser.add_metric()
    parser.add_config_options()
    return parser.parse_args()


def add_corruptions(parser: ToolParser) -> None:
    """Add what is done to the images."""
    corruptions = parser.add_argument_group('corruptions')
    corruptions.add_argument(
        '--corruptions',
        nargs='+',
        choices=get_corruption_names('all'),
        metavar='NAME',
        help=f'corruptions (default: {", ".join(get_corruption_names())}; also: '
        f'{", ".join(get_corruption_names("validation"))})',
    )
    corruptions.add_argument(
        '--severities',
        nargs='+',
        type=int,
        choices=SEVERITIES,
        metavar='N',
        help='severities, 1 to 5 (default: all)',
    )
    corruptions.add_argument(
        '--imagenet-c',
        metavar='DIR',
        help='test classifiers of ImageNet-1k on the files of ImageNet-C, DIR/CORRUPTION/SEVERITY',
    )
    corruptions.add_argument(
        '--vary',
        nargs='+',
        metavar='KEY',
        help='key of a number in the configs and values for it: each model is tested with each, and drawn over it; '
        'without values each model stands at that of its config',
    )


def add_attacks(parser: ToolParser) -> None:
    """Add the attacks on the models."""
    attacks = parser.add_argument_group('attacks')
    attacks.add_argument(
        '--attack',
        nargs='+',
        choices=('fgsm', 'pgd'),
        metavar='NAME',
        help='attack the models instead of corrupting the images: fgsm (one step), pgd (several, random start)',
    )
    attacks.add_argument(
        '--epsilon',
        nargs='+',
        metavar='E',
        help='largest changes of a pixel value as parts of its range, such as 1/255 or 0.01 (default: 1/255)',
    )
    attacks.add_argument('--steps', action=AtLeast, minimum=1, metavar='N', help='steps of pgd (default: 5)')
    attacks.add_argument(
        '--step-size', metavar='S', help='change of a pixel value in a step of pgd (default: 2.5 epsilon / steps)'
    )
    attacks.add_argument(
        '--restarts',
        action=AtLeast,
        minimum=1,
        metavar='N',
        help='attack each image N times with pgd, and count the worst (default: 1)',
    )


def read_study(args: argparse.Namespace) -> Corruptions | Attacks:
    """What is to be done to the images."""
    if not args.attack:
        refuse(args, '--attack', 'epsilon', 'steps', 'step_size', 'restarts')
        names, severities = args.corruptions or get_corruption_names(), args.severities or list(SEVERITIES)
        return Corruptions(names, severities, args.imagenet_c)
    if args.corruptions or args.severities or args.imagenet_c or args.vary:
        raise InputError('--attack takes no corruptions: measure them by another call')
    if 'pgd' not in args.attack:
        refuse(args, '--attack pgd', 'steps', 'step_size', 'restarts')
    epsilons = [f'{255 * part_of_range("--epsilon", text):g}/255' for text in args.epsilon or ('1/255',)]
    step_size = 255 * part_of_range('--step-size', args.step_size) if args.step_size else None
    return Attacks(args.attack, epsilons, args.steps or 5, step_size, args.restarts or 1)


def refuse(args: argparse.Namespace, needed: str, *names: str) -> None:
    """Raise an `InputError` if one of the options was given."""
    for name in names:
        if getattr(args, name) is not None:
            raise InputError(f'--{name.replace("_", "-")} is an option of {needed}: add that')


@run_tool
def main() -> None:
    args = parse_args()
    study = read_study(args)
    models, places = {}, {}
    key, *values = args.vary or [None]
    for path, checkpoint in ((args.config, args.checkpoint), *args.compare):
        name = unique_name(path, models)
        for value in [*map(number_of, values)] or [None]:
            options = dict(args.cfg_options or {}) | ({} if value is None else {key: value})
            config = load_config(path, mini=args.mini, cfg_options=options, dataloaders=('test_dataloader',))
            # So that no test is found to be impossible after hours.
            for condition in study.conditions:
                study.change(copy.deepcopy(config), *condition)
            of_value = name if value is None else f'{name}, {value:g}'
            models[of_value] = TrainedModel.read(config, checkpoint)
            models[of_value].weights_for(model_of(config))
            if key:
                places[of_value] = setting_of(config, key)
        if images_of(config) != images_of(next(iter(models.values())).config):
            print(
                f'{name} is tested on {"; ".join(images_of(config))}: make sure that all models get the same images'
            )
    report = Report(args.out, *FILES, overwrite=True)
    logs = report.path('logs')
    results = Results(report.path('results'), models, study.settings)

    measure_all(models, study, [CLEAN], results, logs)
    metric = args.metric
    for name in models:
        metric = choose_metric(results.load(name, *CLEAN), metric)
    measure_all(models, study, study.conditions, results, logs)
    if args.attack:
        write_attacks(report, metric, study, models, results)
    else:
        write_corruptions(report, metric, study, models, results, key, places)
    print(report)


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


def write_corruptions(
    report: Report,
    metric: str,
    study: Corruptions,
    models: dict[str, TrainedModel],
    results: Results,
    key: str | None,
    places: dict[str, float],
) -> None:
    """Write and print a metric under corruption, and draw it, over a setting that has a value for each model, too."""
    values = results.values(metric, [CLEAN, *study.conditions])
    rows = [
        dict(model=name, corruption=corruption, severity=severity, metric=metric, value=value)
        for name, of_model in values.items()
        for (corruption, severity), value in of_model.items()
    ]
    means = {
        name: {
            corruption: float(np.mean([of_model[corruption, level] for level in study.levels]))
            for corruption in study.names
        }
        for name, of_model in values.items()
    }
    summaries = {
        name: summarize(
            of_model[CLEAN],
            {pair: of_model[pair] for pair in study.conditions},
            on_imagenet=metric == 'accuracy/top1' and tests_imagenet(models[name].config),
        )
        for name, of_model in values.items()
    }
    about = [dict(model=name, **results.models[name], **summaries[name], corruptions=means[name]) for name in values]
    report.write_csv('robustness.csv', rows)
    report.write_json('robustness.json', dict(metric=metric, imagenet_c=study.imagenet_c, models=about))
    report.write_figure('robustness.png', draw_corruptions(metric, values, means, summaries, key, places))

    title = f'{metric}: clean images, mean over corruptions and severities (mPC), ratio (rPC)'
    columns = ['clean', 'mPC', 'rPC']
    if any('mCE' in summary for summary in summaries.values()):
        title += ", errors in percent of AlexNet's (mCE)"
        columns.append('mCE')
    texts = {
        name: dict(
            clean=f'{summary["clean"]:.4g}',
            mPC=f'{summary["mPC"]:.4g}',
            rPC=f'{100 * summary["rPC"]:.1f} %',
            mCE=f'{summary["mCE"]:.1f} %' if 'mCE' in summary else '',
        )
        for name, summary in summaries.items()
    }
    cells = ((name, *(texts[name][column] for column in columns)) for name in values)
    print_table(title, ('model', *columns), cells)
    cells = ((corruption, *(f'{means[name][corruption]:.4g}' for name in values)) for corruption in study.names)
    print_table(f'{metric}, means over severities', ('corruption', *values), cells)


def write_attacks(
    report: Report, metric: str, study: Attacks, models: dict[str, TrainedModel], results: Results
) -> None:
    """Write and print a metric under attack."""
    values = results.values(metric, [CLEAN, *study.conditions])
    rows = [
        dict(model=name, attack=attack, epsilon=epsilon, metric=metric, value=value)
        for name, of_model in values.items()
        for (attack, epsilon), value in of_model.items()
    ]
    about = [
        dict(
            model=name,
            **results.models[name],
            clean=of_model[CLEAN],
            attacks={
                attack: {epsilon: of_model[attack, epsilon] for epsilon in study.levels} for attack in study.names
            },
        )
        for name, of_model in values.items()
    ]
    report.write_csv('robustness.csv', rows)
    report.write_json('robustness.json', dict(metric=metric, **study.settings, models=about))
    report.write_figure('robustness.png', draw_attacks(metric, study, values))
    cells = (
        (*condition, *(f'{of_model[condition]:.4g}' for of_model in values.values()))
        for condition in (CLEAN, *study.conditions)
    )
    print_table(f'{metric} under attack', ('attack', 'epsilon', *values), cells)


def measure_all(
    models: dict[str, TrainedModel],
    study: Corruptions | Attacks,
    conditions: list[Condition],
    results: Results,
    logs: Path,
) -> None:
    """Run the tests that have no results yet."""
    todo = [pair for pair in product(models, conditions) if results.load(pair[0], *pair[1]) is None]
    columns = TextColumn('{task.description}'), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    # On stdout as it is now: during a test it is redirected to a file, for what evaluators print.
    with Progress(*columns, console=Console(file=sys.stdout), speed_estimate_period=3600) as progress:
        task = progress.add_task('', total=len(todo))
        for number, (name, condition) in enumerate(todo):
            what = ' '.join(str(part) for part in condition if part)
            progress.update(task, description=f'{name}, {what}', completed=number)
            advance = functools.partial(progress.advance, task)
            results.save(name, *condition, measure(models[name], study, condition, logs, advance))
        progress.update(task, completed=len(todo))


def draw_corruptions(
    metric: str,
    values: dict[str, dict],
    means: dict[str, dict],
    summaries: dict[str, dict],
    key: str | None,
    places: dict[str, float],
) -> Figure:
    """Draw the metric over the severity (mean over corruptions) and for each corruption (mean over severities).

    A setting that is varied has a third panel, where the means are drawn over it.
    """
    corruptions = list(next(iter(means.values())))
    width = 4 + 0.3 * len(corruptions) * (1 + len(values) / 2)
    widths = (4.5, width, *([3.5] if places else []))
    figure = Figure(figsize=(sum(widths), 4.5), layout='constrained')
    left, right, *third = figure.subplots(1, len(widths), width_ratios=widths, sharey=True)
    for axis in third:
        for label, of_place in (
            ('mean over corruptions', {name: summary['mPC'] for name, summary in summaries.items()}),
            ('images as they are', {name: summary['clean'] for name, summary in summaries.items()}),
        ):
            axis.plot(*zip(*sorted((places[name], value) for name, value in of_place.items())), 'o-', label=label)
        axis.set(xlabel=key, xticks=sorted(places.values()))
        axis.legend(fontsize=7)
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
    for axis in (left, right, *third):
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
