#!/usr/bin/env python
"""Confusion matrix of a trained model on its test set: which class it takes for which, by pixels or by boxes.

Segmentation: all pixels except those with the ignored label. IoU and accuracy are those that tools/test.py prints.

Detection: boxes from --score-thr are matched to objects from --iou-thr one to one, those of the same class first, as
in COCO's evaluation. Objects without a box count as predicted (background), boxes without an object as true
(background). Boxes on crowds do not count.

Classes that nothing has or is predicted to be are not drawn.
"""

import argparse
import sys

import bioattn_mm.process_settings  # noqa: F401

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress

from bioattn_mm.analysis.confusion import (
    ConfusionHook,
    confused_pairs,
    ignore_index_of,
    measure_classes,
    normalize,
)
from bioattn_mm.analysis.evaluation import Advance, TrainedModel
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.reports import Report, print_table
from bioattn_mm.errors import InputError
from bioattn_mm.run_config.classes import classes_of
from bioattn_mm.run_config.config import load_config
from bioattn_mm.run_config.model_check import model_of
from bioattn_mm.run_config.own_data import data_arguments
from bioattn_mm.run_config.pipelines import load_ground_truth
from bioattn_mm.runtime.arguments import number_to

FILES = ('confusion_matrix.png', 'confusion_matrix.csv', 'classes.csv', 'pairs.csv', 'confusion_matrix.json')
# Name of the last row and column.
NO_CLASS = dict(mmseg='(no class)', mmdet='(background)')
OTHER = '(other)'
# Classes up to which the cells have numbers.
MAX_NUMBERS = 25


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'analysis/confusion_matrix.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth --out confusion',
        'analysis/confusion_matrix.py configs/transnext/mask_rcnn_tiny_coco.py epoch_12.pth --out confusion '
        "--score-thr 0.5 --classes cat dog horse 'teddy bear'",
    )
    parser.add_config()
    parser.add_checkpoint()
    parser.add_data()
    parser.add_out(', '.join(FILES))
    parser.add_argument(
        '--iou-thr', type=number_to(1), default=0.5, metavar='IOU', help='IoU for a match in detection (default: 0.5)'
    )
    parser.add_argument(
        '--score-thr', type=number_to(1), default=0.3, metavar='SCORE', help='least score in detection (default: 0.3)'
    )
    parser.add_argument(
        '--classes',
        nargs='+',
        metavar='CLASS',
        help=f'draw these classes, and all others as {OTHER}, and print pairs with them; the files have all classes',
    )
    parser.add_argument(
        '--normalize',
        choices=['truth', 'prediction', 'all', 'none'],
        default='truth',
        help='draw in %% of the objects or pixels of a class, of the predictions of a class, of everything, or the '
        'numbers (default: truth)',
    )
    parser.add_integer(
        '--top', minimum=0, default=20, metavar='N', help='print the N most confused pairs of classes (default: 20)'
    )
    parser.add_config_options()
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    report = Report(args.out, *FILES)
    if not 0 < args.iou_thr <= 1:
        raise InputError(f'--iou-thr must be above 0 and at most 1, got {args.iou_thr:g}')
    config = load_config(
        args.config,
        data=data_arguments(args),
        mini=args.mini,
        cfg_options=args.cfg_options,
        dataloaders=('test_dataloader',),
    )
    task = config.default_scope
    if task not in NO_CLASS:
        raise InputError(
            f'{args.config} is a config of {task}: expected one of mmdet (detection) or mmseg (segmentation)'
        )
    classes, _ = classes_of(config)
    if not classes:
        raise InputError(f'{args.config} names no classes: add them to the metainfo of the test dataset')
    for name in args.classes or ():
        if name not in classes:
            raise InputError(
                f'--classes {name!r} is not a class of the test set: expected some of {", ".join(classes)}'
            )
    model = TrainedModel.read(config, args.checkpoint)
    check_classes(model, classes)
    model.weights_for(model_of(config))  # before anything is written
    hook = ConfusionHook(len(classes), ignore_index_of(config), args.iou_thr, args.score_thr)
    load_ground_truth(config, masks=False)
    config.test_evaluator = []  # which would keep all predictions
    config.work_dir = str(report.path('logs'))
    # On stdout as it is now: during a test it is redirected to a file, for what evaluators print.
    with Progress(console=Console(file=sys.stdout)) as progress:
        bar = progress.add_task('testing', total=1)
        model.test(config, hook, Advance(lambda part: progress.advance(bar, part)))
    counts = hook.counts
    if not counts.any():
        what = f'objects, and no box with a score of {args.score_thr:g}' if task == 'mmdet' else 'pixels that count'
        raise InputError(f'there is nothing to count: the test images have no {what}')

    rows, pairs = measure_classes(counts, classes), confused_pairs(counts, classes)
    if task == 'mmdet':
        for index, row in enumerate(rows):
            row.pop('IoU')
            row.update(missed=int(counts[index, -1]), false_alarms=int(counts[-1, index]))
    summary = summarize(counts, rows, task)
    write(report, args, task, counts, summary, rows, pairs)
    print_classes(rows, args.classes)
    print_pairs([pair for pair in pairs if is_wanted(pair, args.classes)][: args.top])
    if task == 'mmseg' and counts[-1].any():
        print(f'{counts[-1].sum()} pixels have a label that is none of the classes: see tools/inspect_data.py')
    print('  '.join(f'{name} {value:.2f}' for name, value in summary.items()))
    print(report)


def write(
    report: Report,
    args: argparse.Namespace,
    task: str,
    counts: np.ndarray,
    summary: dict[str, float],
    rows: list[dict],
    pairs: list[dict],
) -> None:
    """Write tables, document and drawing."""
    names = [*(row['class'] for row in rows), NO_CLASS[task]]
    table = [{'truth': name, **dict(zip(names, map(int, row)))} for name, row in zip(names, counts)]
    report.write_csv('confusion_matrix.csv', table)
    report.write_csv('classes.csv', rows)
    report.write_csv('pairs.csv', pairs)
    settings = dict(config=args.config, checkpoint=args.checkpoint)
    settings |= dict(iou_thr=args.iou_thr, score_thr=args.score_thr) if task == 'mmdet' else {}
    document = dict(settings, summary=summary, names=names, counts=counts.tolist(), classes=rows, pairs=pairs)
    report.write_json('confusion_matrix.json', document, indent=None)
    report.write_figure('confusion_matrix.png', draw(*select(counts, names, args.classes), args.normalize, summary))


def check_classes(model: TrainedModel, classes: tuple[str, ...]) -> None:
    """Compare the classes that a checkpoint says it was trained on, if any, with those of the test set.

    Raises:
        InputError: Their numbers differ.
    """
    learned = model.dataset_meta.get('classes') or classes
    if len(learned) != len(classes):
        listed = ', '.join(learned[:3]) + (', ...' if len(learned) > 3 else '')
        raise InputError(
            f'{model.checkpoint} was trained on {len(learned)} classes ({listed}), the test set of '
            f'{model.config.filename} has {len(classes)}: name the data with --data, or the config in the work dir '
            'of that training'
        )
    renamed = [pair for pair in zip(learned, classes) if pair[0].lower() != pair[1].lower()]
    if renamed:
        print(
            f'{len(renamed)} of {len(classes)} classes have other names in the checkpoint, such as '
            '{!r} for {!r}: make sure that they are the same'.format(*renamed[0])
        )


def summarize(counts: np.ndarray, rows: list[dict], task: str) -> dict[str, float]:
    """The metrics of all classes together in %; means are over the classes that have a value, as mmseg takes them."""
    right, truth, predicted = (sum(row[key] for row in rows) for key in ('right', 'truth', 'predicted'))
    if task == 'mmseg':
        summary = dict(aAcc=right / truth if truth else np.nan)
        means = dict(mIoU='IoU', mAcc='recall', mPrecision='precision')
    else:
        summary = dict(
            precision=right / predicted if predicted else np.nan, recall=right / truth if truth else np.nan
        )
        means = dict(mPrecision='precision', mRecall='recall')
    summary = {name: 100 * value for name, value in summary.items()}
    for name, key in means.items():
        values = [row[key] for row in rows if not np.isnan(row[key])]
        summary[name] = float(np.mean(values)) if values else np.nan
    return summary


def select(counts: np.ndarray, names: list[str], wanted: list[str] | None) -> tuple[np.ndarray, list[str]]:
    """The part of a matrix to draw: without the classes that nothing has or is predicted to be, or those asked for.

    All others than those asked for become one row and one column.
    """
    if not wanted:
        (there,) = np.nonzero(counts.any(axis=0) | counts.any(axis=1))
        return counts[np.ix_(there, there)], [names[index] for index in there]
    shown = [*dict.fromkeys(wanted), OTHER, *(name for name in names[-1:] if name in NO_CLASS.values())]
    groups = [shown.index(name if name in shown else OTHER) for name in names]
    merged = np.zeros((len(shown),) * 2, counts.dtype)
    np.add.at(merged, np.ix_(groups, groups), counts)
    return merged, shown


def is_wanted(pair: dict, wanted: list[str] | None) -> bool:
    return not wanted or pair['truth'] in wanted or pair['predicted'] in wanted


def draw(counts: np.ndarray, names: list[str], by: str, summary: dict[str, float]) -> Figure:
    """Draw a matrix, small values in a stretched colour scale; with numbers in the cells if they are few."""
    shown = counts if by == 'none' else normalize(counts, by)
    has_numbers = len(names) <= MAX_NUMBERS
    side = 3 + (0.5 if has_numbers else 0.13) * len(names)
    figure = Figure(figsize=(side + 1, side), layout='constrained')
    axis = figure.subplots()
    image = axis.imshow(shown, cmap='cividis', norm=PowerNorm(0.5, 0, max(shown.max(), 1e-9)))
    label = dict(truth='% of the ground truth', prediction='% of the predictions', all='% of all', none='number')[by]
    figure.colorbar(image, ax=axis, label=label, shrink=0.8)
    places = range(len(names))
    size = 8 if has_numbers else 6
    axis.set_xticks(places, names, rotation=90, fontsize=size)
    axis.set_yticks(places, names, fontsize=size)
    axis.set(xlabel='predicted', ylabel='ground truth')
    axis.set_title('  '.join(f'{name} {value:.2f}' for name, value in summary.items()), fontsize=9)
    if has_numbers:
        for (row, column), value in np.ndenumerate(shown):
            if counts[row, column]:
                color = 'black' if image.norm(value) > 0.5 else 'white'
                text = f'{value:.3g}' if by == 'none' else f'{value:.1f}'
                axis.text(column, row, text, ha='center', va='center', color=color, fontsize=7)
    return figure


def print_classes(rows: list[dict], wanted: list[str] | None) -> None:
    """Print the measures of the classes that there are in the ground truth or the predictions."""
    measures = [key for key in ('IoU', 'precision', 'recall') if key in rows[0]]
    numbers = [key for key in ('truth', 'predicted', 'missed', 'false_alarms') if key in rows[0]]
    cells = [
        (row['class'], *(f'{row[key]:.2f}' for key in measures), *(row[key] for key in numbers))
        for row in rows
        if (row['class'] in wanted if wanted else row['truth'] or row['predicted'])
    ]
    print_table(
        'classes: measures in %, numbers', ('class', *measures, *(key.replace('_', ' ') for key in numbers)), cells
    )


def print_pairs(pairs: list[dict]) -> None:
    if pairs:
        cells = [
            (pair['truth'], pair['predicted'], pair['count'], f'{pair["percent_of_truth"]:.1f}') for pair in pairs
        ]
        print_table('most confused', ('truth', 'predicted', 'number', '% of the truth'), cells)


if __name__ == '__main__':
    main()
