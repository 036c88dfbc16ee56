#!/usr/bin/env python
"""Look at a dataset before training on it: images with their ground truth, statistics, and what is wrong.

You see images as training sees them, after augmentation; counts of objects, pixels or images of each class, of image
and box sizes, and of objects in an image; and a list of what is wrong: unknown ids and labels, boxes outside the
image, masks and label maps of another size than their image, images that are missing, unreadable or listed twice. The
exit code is 1 if something is wrong. Images without annotations are fine, and counted.
"""

import argparse
import contextlib
import copy
import io
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import bioattn_mm.cli.threads_and_memory  # noqa: F401

import mmcv
import numpy as np
from matplotlib.figure import Figure
from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, VISUALIZERS, init_default_scope
from rich import progress
from rich.console import Console

from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.reports import Report, print_table, write_contact_sheet
from bioattn_mm.data.checks import Problem
from bioattn_mm.data.formats.arguments import data_arguments
from bioattn_mm.data.image_files import spread
from bioattn_mm.data.inspection import Inspection, inspect_dataset
from bioattn_mm.data.samplers import seed_everything
from bioattn_mm.errors import InputError, first_line, printable
from bioattn_mm.runtime.images import shown
from bioattn_mm.training.config.classes import leaf_dataset_configs
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.pipelines import (
    LOAD_CHANNELS,
    build_dataset,
    data_preprocessor_of,
    find_dicts,
    image_kind,
    loads_masks,
)

SAMPLES = 'samples'  # folder of the images that are drawn
FILES = ('samples.png', 'statistics.png', 'statistics.json', 'classes.csv', 'images.csv', 'problems.csv')
SHEET_COLUMNS = 3
OPACITY = 0.5  # the opacity of what is drawn over an image
CLASSIFIED_SIZE = 448  # the short side of a drawing, in pixels, from which the class is written into the image
SEED = 0  # the seed of the augmentation of what is drawn
NUM_PRINTED = 3  # problems of each kind
MAX_BARS = 60  # classes in the drawing
NUMBERED = 'in an image'  # end of the names of what is counted in each image
MAX_DRAWN = 300  # objects of an image: each takes milliseconds


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'inspect_data.py configs/transnext/mask_rcnn_tiny_coco.py --out inspected',
        'inspect_data.py configs/transnext/upernet_tiny_ade20k.py --split val --max-images 500 --out inspected',
        'inspect_data.py configs/transnext/mask_rcnn_tiny_coco.py --data DIR --out inspected',
    )
    parser.add_shared('config')
    parser.add_data()
    parser.add_out(f'{", ".join(FILES)} and the folder {SAMPLES}')
    splits = dict(choices=['train', 'val'], default='train')
    parser.add_argument('--split', **splits, help='training or validation images (default: train)')
    parser.add_integer('--number', minimum=0, default=12, metavar='N', help='draw N images (default: 12)')
    parser.add_argument('--original', action='store_true', help='draw the training images without augmentation')
    parser.add_integer(
        '--max-images', minimum=1, metavar='N', help='read N images, spread over the dataset (default: all)'
    )
    parser.add_argument('--decode', action='store_true', help='decode every image, to find truncated files')
    parser.add_argument(
        '--channels',
        type=three_channels,
        metavar='R,G,B',
        help='of images that are not RGB in 8 bits: the channels to draw as red, green and blue, from 1, such as '
        '4,3,2 (default: 1,2,3)',
    )
    parser.add_config_options()
    return parser.parse_args()


def three_channels(text: str) -> tuple[int, ...]:
    parts = text.split(',')
    if len(parts) != 3 or not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f'expected the numbers of three channels, such as 4,3,2, got {text!r}')
    return tuple(map(int, parts))


@run_tool
def main() -> None:
    args = parse_args()
    report = Report(args.out, *FILES, SAMPLES)
    dataloader = f'{args.split}_dataloader'
    problems: list[Problem] = []  # the notes of own data: what is not in the datasets any more
    data = data_arguments(args, problems)
    options = dict(mini=args.mini, cfg_options=args.cfg_options, dataloaders=(dataloader,))
    try:
        config = load_config(args.config, data=data, **options)
    except InputError:
        if problems:  # where nothing is left to look at, what was found says why
            write_problems(report, problems)
        raise
    if not config.get(dataloader):
        raise InputError(f'{args.config} has no {dataloader}')
    init_default_scope(config.default_scope)
    kind = image_kind(config)
    if args.channels and kind is None:
        raise InputError('--channels is for images that are not RGB in 8 bits, and these are')
    if args.channels and max(args.channels) > kind.channels:
        raise InputError(f'--channels {max(args.channels)}: the images have {kind}')
    found = inspect(config, dataloader, args.max_images, args.decode, problems)
    if not found.files and not found.problems:
        raise InputError(f'no images in the dataset of {dataloader}: its folders or its list of images are empty')

    as_training = args.split == 'train' and not args.original
    paths = draw_samples(config, dataloader, as_training, args.number, report, found, args.channels)
    if paths:
        write_contact_sheet(paths, report.path('samples.png'), -(-len(paths) // SHEET_COLUMNS), SHEET_COLUMNS)
    unit = dict(mmseg='pixels', mmpretrain='images').get(config.default_scope, 'objects')
    classes = [
        {'class': name, unit: int(amount), 'images': int(images)}
        for name, amount, images in zip(found.classes, found.amounts, found.images_of_class)
    ]
    images = [
        dict(file=file, width=size[0], height=size[1], **{'objects' if unit == 'objects' else 'classes': number})
        for file, size, number in zip(found.files, found.sizes, found.numbers)
    ]
    report.write_csv('classes.csv', classes)
    report.write_csv('images.csv', images)
    summary = summarize(found, unit)
    if kind is not None:
        summary.update(channels=kind.channels, depth=kind.dtype)
        for name, key in {'mean of each channel': 'mean', 'standard deviation': 'std'}.items():
            summary[name] = ', '.join(f'{value:g}' for value in data_preprocessor_of(config)[key])
    notes = [*config.get('own_data', []), *found.notes]
    document = dict(config=args.config, split=args.split, summary=summary, notes=notes, classes=classes)
    report.write_json('statistics.json', dict(document, problems=Counter(each.kind for each in found.problems)))
    report.write_figure('statistics.png', draw(found, unit))

    print_table(f'{args.split} images of {args.config}', ('', 'number'), summary.items())
    cells = [row.values() for row in sorted(classes, key=lambda row: -row[unit]) if row['images']]
    print_table('classes', tuple(dict.fromkeys(('class', unit, 'images'))), cells)
    print(*map(printable, notes), sep='\n', end='\n' * bool(notes))
    write_problems(report, found.problems)
    print(*(path for path in map(report.folder.joinpath, report.files) if path.exists()), sep='  ')
    if found.problems:
        sys.exit(1)


def write_problems(report: Report, problems: list[Problem]) -> None:
    """Write the list of all problems; print the number of each kind, and the first ones."""
    lines = [{key: printable(value) for key, value in vars(problem).items()} for problem in problems]
    report.write_csv('problems.csv', lines)
    if not problems:
        print('nothing is wrong')
        return
    kinds = Counter(problem.kind for problem in problems)
    print_table('what is wrong', ('', 'number'), kinds.most_common())
    for kind, number in kinds.items():
        for problem in [each for each in problems if each.kind == kind][:NUM_PRINTED]:
            print(printable(f'{kind}: {problem.file}' + (f': {problem.detail}' if problem.detail else '')))
        if number > NUM_PRINTED:
            print(f'{kind}: and {number - NUM_PRINTED} more, see problems.csv')


def inspect(
    config: Config, dataloader: str, max_images: int | None, decode: bool, problems: list[Problem]
) -> Inspection:
    """Inspect all datasets of a dataloader, see `inspect_dataset`; `problems` were found before."""
    with_mask, found = loads_masks(config), None
    for leaf in leaf_dataset_configs(config[dataloader].dataset):
        dataset = DATASETS.build(dict(leaf, pipeline=[], lazy_init=True, serialize_data=False))
        if 'classes' not in dataset.metainfo:  # mmpretrain's CustomDataset finds them in its folders
            dataset.full_init()
        found = found or Inspection(dataset.metainfo.get('classes', ()))
        inspect_dataset(found, dataset, with_mask, max_images, decode, track, image_kind(config))
    found.problems[:0] = problems
    if found.files and not found.amounts.any():
        folder = Path(found.files[0]).parent
        found.add_problem('nothing is labelled', folder, f'in {len(found.files)} images of {dataloader}')
    return found


def track(items: Iterable, what: str, number: int) -> Iterable:
    """Iterate over something, and show how far it is."""
    return progress.track(items, what, number, console=Console(file=sys.stdout))


def draw_samples(
    config: Config,
    dataloader: str,
    as_training: bool,
    number: int,
    report: Report,
    found: Inspection,
    channels: tuple[int, ...] | None = None,
) -> list[Path]:
    """Draw a number of images with their ground truth, evenly spread over the dataset; returns the files.

    They are drawn after augmentation if they are drawn as the training sees them. What cannot be loaded is added to
    the problems that were found. `channels` are those of `shown`.
    """
    settings = copy.deepcopy(config[dataloader].dataset)
    if not as_training:
        parts = [dict(leaf, pipeline=loading_steps(config)) for leaf in leaf_dataset_configs(settings)]
        settings = dict(type='ConcatDataset', datasets=parts)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints lines
            dataset = build_dataset(settings)
        length = len(dataset)
    except Exception as error:  # the list of what is wrong in the annotations
        found.add_problem('dataset cannot be loaded', config.filename, first_line(error))
        return []
    if as_training and length < len(found.files):  # with --max-images, fewer files were read
        found.notes.append(f'the training sees {length} of {len(found.files)} images (see filter_cfg of the dataset)')
    classifies = config.default_scope == 'mmpretrain'
    opacity = {} if classifies else dict(alpha=OPACITY)
    visualizer = VISUALIZERS.build(dict(config.visualizer, name='inspect_data', vis_backends=None, **opacity))
    visualizer.dataset_meta = dataset.metainfo
    kind, paths = image_kind(config), []
    for index in spread(length, number):
        seed_everything(SEED, index)
        try:
            packed = dataset[index]
        except InputError as error:
            if not any(problem.file in str(error) for problem in found.problems):
                found.add_problem('image cannot be loaded', f'number {index} of the dataset', str(error))
            continue
        sample = packed['data_samples']
        if classifies and not ((sample.gt_label >= 0) & (sample.gt_label < len(found.classes))).all():
            continue  # its label is in the list of problems
        if (number := len(sample.get('gt_instances', ()))) > MAX_DRAWN:
            found.notes.append(f'{sample.img_path}: {MAX_DRAWN} of {number} objects are drawn')
            sample.gt_instances = sample.gt_instances[:MAX_DRAWN]
        if 'bboxes' in sample.get('gt_instances', ()):
            boxes = sample.gt_instances.bboxes
            sample.gt_instances.bboxes = getattr(boxes, 'tensor', boxes)  # the visualizer takes no box classes
        image = packed['inputs'].numpy().transpose(1, 2, 0)
        image = np.ascontiguousarray((image if kind is None else shown(image, channels))[..., ::-1])
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # the warning of boxes that reach the border
            if classifies:
                visualizer.visualize_cls(image, sample, draw_pred=False, resize=CLASSIFIED_SIZE)
            else:
                visualizer.add_datasample('', image, sample, draw_pred=False)
        paths.append(report.path(SAMPLES) / f'{index:06d}_{Path(sample.img_path).stem}.png')
        mmcv.imwrite(visualizer.get_image()[..., ::-1], str(paths[-1]))
    return paths


def loading_steps(config: Config) -> list[ConfigDict]:
    """The steps of the training pipeline that load and pack an image, without those that change it."""
    steps = [step for step in find_dicts(config.get('train_dataloader')) if isinstance(step.get('type'), str)]
    annotations = [] if config.default_scope == 'mmpretrain' else [('LoadAnnotations',)]
    chosen = []
    for names in (('LoadImageFromFile', LOAD_CHANNELS), *annotations, ('Inputs',)):
        chosen += [step for step in steps if step['type'].endswith(names)][:1]
        if not chosen or not chosen[-1]['type'].endswith(names):
            raise InputError(
                f'the training pipeline of {config.filename} has no step of type *{names[0]}: nothing to draw'
            )
    return chosen


def summarize(found: Inspection, unit: str) -> dict[str, int | str]:
    """The numbers of the summary by what they are of."""
    summary = {'images': len(found.files), 'images without annotations': found.num_empty}
    summary[f'classes of {len(found.classes)} that occur'] = int((found.images_of_class > 0).sum())
    if unit != 'images':
        summary[unit] = int(found.amounts.sum())
        summary['crowds and ignored objects' if unit == 'objects' else 'pixels that do not count'] = found.num_ignored
    for name, values in measures_of(found, unit).items():
        summary[f'{name}: least, median, most'] = '{:.4g}, {:.4g}, {:.4g}'.format(
            *np.percentile(values, (0, 50, 100))
        )
    summary['problems'] = len(found.problems)
    return summary


def measures_of(found: Inspection, unit: str) -> dict[str, np.ndarray]:
    """What histograms are drawn of."""
    sizes, boxes = (np.array(pairs).reshape(-1, 2) for pairs in (found.sizes, found.box_sizes))
    measures = {'width of images': sizes[:, 0], 'height of images': sizes[:, 1]}
    if unit != 'images':
        what = 'objects' if unit == 'objects' else 'classes'
        measures[f'{what} {NUMBERED}'] = np.array(found.numbers)
    measures['size of boxes (root of the area)'] = np.sqrt(boxes.prod(axis=1))
    return {name: values for name, values in measures.items() if len(values)}


def draw(found: Inspection, unit: str) -> Figure:
    """Draw the most frequent classes, and histograms, in which numbers have a bin each, if they are few."""
    order = np.argsort(-found.amounts, kind='stable')
    order = order[found.amounts[order] > 0][:MAX_BARS]
    figure = Figure(figsize=(13, max(6.0, 1 + 0.16 * len(order))), layout='constrained')
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.6))
    axis = left.subplots()
    bars = axis.barh(range(len(order)), found.amounts[order])
    axis.bar_label(bars, fontsize=6, padding=2)
    axis.set_yticks(range(len(order)), [found.classes[index] for index in order], fontsize=7)
    axis.invert_yaxis()
    axis.set(xlabel=unit)
    axis.margins(x=0.12, y=0.01)
    axis.set_title(f'{len(order)} of {(found.amounts > 0).sum()} classes that occur', fontsize=9)
    axes = right.subplots(2, 2).ravel()
    measures = measures_of(found, unit)
    for axis, (name, values) in zip(axes, measures.items()):
        few = name.endswith(NUMBERED) and values.max() < 50
        axis.hist(values, np.arange(values.max() + 2) - 0.5 if few else 40, histtype='stepfilled')
        axis.set(xlabel=name if name.endswith(NUMBERED) else f'{name} (pixels)')
        axis.set_ylabel('boxes' if 'boxes' in name else 'images')
        axis.tick_params(labelsize=7)
    for axis in axes[len(measures) :]:
        axis.axis('off')
    return figure


if __name__ == '__main__':
    main()
