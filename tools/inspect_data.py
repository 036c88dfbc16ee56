#!/usr/bin/env python
"""Look at a dataset before training on it: images with their ground truth, statistics, and what is wrong.

Draws images as the training sees them, after augmentation; counts objects, pixels or images of each class, sizes of
images and boxes, objects in an image; and lists what is wrong: ids of categories, labels and images that do not
exist, boxes outside of the image or without area, masks and label maps of another size than their image, images that
are missing, cannot be read or stand twice. Ends with exit code 1 if something is wrong. Images without annotations
are legal, and counted.
"""

import argparse
import contextlib
import copy
import io
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import bioattn_mm.process_settings  # noqa: F401

import mmcv
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, VISUALIZERS, init_default_scope
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.reports import Report, print_table, write_contact_sheet
from bioattn_mm.datasets.coco_file import write_loadable
from bioattn_mm.datasets.inspection import Inspection, inspect_dataset
from bioattn_mm.datasets.parallel import spread
from bioattn_mm.datasets.problem import Problem
from bioattn_mm.datasets.samplers import seed_everything
from bioattn_mm.errors import InputError, first_line, printable
from bioattn_mm.run_config.classes import leaf_dataset_configs
from bioattn_mm.run_config.config import load_config
from bioattn_mm.run_config.own_data import data_arguments
from bioattn_mm.run_config.own_data.folders import temporary_file
from bioattn_mm.run_config.pipelines import (
    LOAD_CHANNELS,
    build_dataset,
    data_preprocessor_of,
    find_dicts,
    image_kind,
    loads_masks,
)
from bioattn_mm.runtime.channels import ImageKind, shown

SAMPLES = 'samples'  # folder of the images that are drawn
FILES = ('samples.png', 'statistics.png', 'statistics.json', 'classes.csv', 'images.csv', 'problems.csv')
SHEET_COLUMNS = 3
OPACITY = 0.5  # of what is drawn over an image
CLASSIFIED_SIZE = 448  # of the short side of a drawing, in pixels, where the class is written into the image
SEED = 0  # of the augmentation of what is drawn
NUM_PRINTED = 3  # problems of each kind
MAX_BARS = 60  # classes in the drawing
# What the summary calls mean and standard deviation of the data preprocessor.
MEASURED = {'mean of each channel': 'mean', 'standard deviation': 'std'}
# Objects of an image that are loaded to be drawn, spread over all: one takes milliseconds.
MAX_DRAWN = 300


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'inspect_data.py configs/transnext/mask_rcnn_tiny_coco.py --out inspected',
        'inspect_data.py configs/transnext/upernet_tiny_ade20k.py --split val --max-images 500 --out inspected',
        'inspect_data.py configs/transnext/mask_rcnn_tiny_coco.py --data DIR --out inspected',
    )
    parser.add_config()
    parser.add_data()
    parser.add_out(f'{", ".join(FILES)} and the folder {SAMPLES}')
    parser.add_argument(
        '--split', choices=['train', 'val'], default='train', help='training or validation images (default: train)'
    )
    parser.add_integer('--number', minimum=0, default=12, metavar='N', help='draw N images (default: 12)')
    parser.add_argument(
        '--original',
        action='store_true',
        help='draw the images as they are in their files; those of --split val always are',
    )
    parser.add_integer(
        '--max-images',
        minimum=1,
        metavar='N',
        help='read N images and label maps, spread evenly over all (default: all); annotations in JSON files are '
        'checked all the same',
    )
    parser.add_argument(
        '--decode',
        action='store_true',
        help='decode every image, which takes longer: otherwise its header is read, and a cut-off file is not found',
    )
    parser.add_argument(
        '--channels',
        type=three_channels,
        metavar='R,G,B',
        help='of images that are not RGB in 8 bits: the numbers of the channels to draw as red, green and blue, the '
        'first being 1, such as 4,3,2 (default: 1,2,3); what has more than 8 bits is stretched in each image',
    )
    parser.add_config_options()
    return parser.parse_args()


def three_channels(text: str) -> tuple[int, ...]:
    """Read numbers of channels such as 4,3,2."""
    parts = text.split(',')
    if len(parts) != 3 or not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f'expected the numbers of three channels, such as 4,3,2, got {text!r}')
    return tuple(map(int, parts))


@run_tool
def main() -> None:
    args = parse_args()
    report = Report(args.out, *FILES, SAMPLES)
    dataloader = f'{args.split}_dataloader'
    problems: list[Problem] = []  # of own data, what is not in the datasets any more
    try:
        config = load_config(
            args.config,
            data=data_arguments(args, problems),
            mini=args.mini,
            cfg_options=args.cfg_options,
            dataloaders=(dataloader,),
        )
    except InputError:
        if problems:  # nothing may be left to look at: what was found says why
            write_problems(report, problems)
            print_problems(problems)
        raise
    if not config.get(dataloader):
        raise InputError(f'{args.config} has no {dataloader}')
    init_default_scope(config.default_scope)
    kind = image_kind(config)
    check_channels(args.channels, kind)
    found = inspect(config, dataloader, args.max_images, args.decode, problems)
    if not found.files and not found.problems:
        raise InputError(f'no images in the dataset of {dataloader}: its folders or its list of images are empty')
    unit = dict(mmseg='pixels', mmpretrain='images').get(config.default_scope, 'objects')

    as_training = args.split == 'train' and not args.original
    paths = draw_samples(config, dataloader, as_training, args.number, report, found, args.channels)
    if paths:
        write_contact_sheet(paths, report.path('samples.png'), -(-len(paths) // SHEET_COLUMNS), SHEET_COLUMNS)
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
    write_problems(report, found.problems)
    summary, histograms = summarize(found, unit), histograms_of(found, unit)
    if kind is not None:
        summary.update(channels_of(config, kind))
    notes = [*config.get('own_data', []), *found.notes]
    problems = dict(Counter(problem.kind for problem in found.problems))
    document = dict(
        config=args.config, split=args.split, summary=summary, problems=problems, notes=notes, classes=classes
    )
    report.write_json('statistics.json', dict(document, histograms=histograms))
    report.write_figure('statistics.png', draw(found, unit, histograms))

    print_table(f'{args.split} images of {args.config}', ('', 'number'), summary.items())
    cells = [row.values() for row in sorted(classes, key=lambda row: -row[unit]) if row['images']]
    print_table('classes', tuple(dict.fromkeys(('class', unit, 'images'))), cells)
    for note in notes:
        print(printable(note))
    print_problems(found.problems)
    print(*(path for path in map(report.folder.joinpath, report.files) if path.exists()), sep='  ')
    if found.problems:
        sys.exit(1)


def write_problems(report: Report, problems: list[Problem]) -> None:
    """Write the list of all problems."""
    lines = [{key: printable(value) for key, value in vars(problem).items()} for problem in problems]
    report.write_csv('problems.csv', lines)


def check_channels(channels: tuple[int, ...] | None, kind: ImageKind | None) -> None:
    """Raise an `InputError` if there are no such channels to draw."""
    if channels and kind is None:
        raise InputError('--channels is for images that are not RGB in 8 bits, and these are')
    if channels and max(channels) > kind.channels:
        raise InputError(f'--channels {max(channels)}: the images have {kind}')


def channels_of(config: Config, kind: ImageKind) -> dict[str, int | str]:
    """What the summary says of images that are not RGB in 8 bits."""
    preprocessor = data_preprocessor_of(config)
    means = {name: ', '.join(f'{value:g}' for value in preprocessor[key]) for name, key in MEASURED.items()}
    return {'channels': kind.channels, 'depth': kind.dtype, **means}


def inspect(
    config: Config, dataloader: str, max_images: int | None, decode: bool, problems: list[Problem]
) -> Inspection:
    """Inspect all datasets of a dataloader.

    Args:
        config: The config.
        dataloader: Key of the dataloader.
        max_images: Number of image files and label maps to read at most; None for all.
        decode: Whether to decode images.
        problems: Those that were found before.

    Raises:
        InputError: A dataset is of a kind that this tool does not know, or cannot be read.
    """
    with_mask = loads_masks(config)
    found = None
    for leaf in leaf_dataset_configs(config[dataloader].dataset):
        dataset = DATASETS.build(dict(leaf, pipeline=[], lazy_init=True))
        found = found or Inspection(dataset.metainfo['classes'])
        inspect_dataset(found, dataset, with_mask, max_images, decode, track, image_kind(config))
    found.problems[:0] = problems
    if found.nothing_labelled():
        folder = Path(found.files[0]).parent
        found.add_problem('nothing is labelled', folder, f'in {len(found.files)} images of {dataloader}')
    return found


def track(items: Iterable, what: str, number: int) -> Iterator:
    """Iterate over something, and show how far it is."""
    columns = TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(file=sys.stdout)) as progress:
        yield from progress.track(items, number, description=what)


def draw_samples(
    config: Config,
    dataloader: str,
    as_training: bool,
    number: int,
    report: Report,
    found: Inspection,
    channels: tuple[int, ...] | None = None,
) -> list[Path]:
    """Draw images with their ground truth, evenly spread over the dataset.

    Args:
        config: The config.
        dataloader: Key of the dataloader.
        as_training: Whether to draw them after augmentation.
        number: Number of images.
        report: The files are written to its folder.
        found: A dataset that cannot be loaded is added to its problems, and an image if nothing was wrong with it.
        channels: Numbers of the channels to draw of images that are not RGB in 8 bits, as `shown` takes them.

    Returns:
        The files.
    """
    dataset_config = copy.deepcopy(config[dataloader].dataset)
    if config.default_scope == 'mmdet' and (found.problems or max(found.numbers, default=0) > MAX_DRAWN):
        for leaf in leaf_dataset_configs(dataset_config):
            copied = temporary_file('drawn.json')
            write_loadable(str(Path(leaf.get('data_root') or '', leaf.get('ann_file') or '')), copied, MAX_DRAWN)
            leaf.ann_file = str(copied)
    numbers = dict(zip(found.files, found.numbers))
    if not as_training:
        dataset_config = [dict(leaf, pipeline=loading_steps(config)) for leaf in leaf_dataset_configs(dataset_config)]
        dataset_config = dict(type='ConcatDataset', datasets=dataset_config)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # what pycocotools prints
            dataset = build_dataset(dataset_config)
        length = len(dataset)
    except Exception as error:  # of what is wrong in the annotations
        found.add_problem('dataset cannot be loaded', config.filename, first_line(error))
        return []
    if as_training and length < len(found.files):  # with --max-images, fewer files were read
        found.notes.append(f'the training sees {length} of {len(found.files)} images (see filter_cfg of the dataset)')
    opacity = {} if config.default_scope == 'mmpretrain' else dict(alpha=OPACITY)
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
        if 'gt_instances' in sample and numbers.get(sample.img_path, 0) > MAX_DRAWN:
            found.notes.append(f'{sample.img_path}: {MAX_DRAWN} of {numbers[sample.img_path]} objects are drawn')
        if 'bboxes' in sample.get('gt_instances', ()):
            boxes = sample.gt_instances.bboxes
            sample.gt_instances.bboxes = getattr(boxes, 'tensor', boxes)  # the visualizer takes no box classes
        path = report.path(SAMPLES) / f'{index:06d}_{Path(sample.img_path).stem}.png'
        image = packed['inputs'].numpy().transpose(1, 2, 0)
        image = np.ascontiguousarray((image if kind is None else shown(image, channels))[..., ::-1])
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # of boxes that reach the border
            if config.default_scope == 'mmpretrain':
                visualizer.visualize_cls(image, sample, draw_pred=False, resize=CLASSIFIED_SIZE)
            else:
                visualizer.add_datasample(path.stem, image, sample, draw_pred=False)
        mmcv.imwrite(visualizer.get_image()[..., ::-1], str(path))
        paths.append(path)
    return paths


def loading_steps(config: Config) -> list[ConfigDict]:
    """The steps of the training pipeline that load and pack an image, without those that change it."""
    steps = [step for step in find_dicts(config.get('train_dataloader')) if isinstance(step.get('type'), str)]
    chosen = {}
    annotations = [] if config.default_scope == 'mmpretrain' else [('LoadAnnotations',)]
    for names in (('LoadImageFromFile', LOAD_CHANNELS), *annotations, ('Inputs',)):
        chosen[names] = next((step for step in steps if step['type'].endswith(names)), None)
        if chosen[names] is None:
            raise InputError(
                f'the training pipeline of {config.filename} has no step of type *{names[0]}: nothing to draw'
            )
    return list(chosen.values())


def summarize(found: Inspection, unit: str) -> dict[str, int | str]:
    """The numbers of the summary by what they are of."""
    summary = {'images': len(found.files), 'images without annotations': found.num_empty}
    summary[f'classes of {len(found.classes)} that occur'] = int((found.images_of_class > 0).sum())
    if unit != 'images':
        summary[unit] = int(found.amounts.sum())
        summary['crowds and ignored objects' if unit == 'objects' else 'pixels that do not count'] = found.num_ignored
    for name, values in measures_of(found, unit).items():
        if len(values):
            low, middle, high = np.percentile(values, (0, 50, 100))
            summary[f'{name}: least, median, most'] = f'{low:.4g}, {middle:.4g}, {high:.4g}'
    summary['problems'] = len(found.problems)
    return summary


def measures_of(found: Inspection, unit: str) -> dict[str, np.ndarray]:
    """What histograms are drawn of."""
    sizes = np.array(found.sizes).reshape(-1, 2)
    measures = {'width of images': sizes[:, 0], 'height of images': sizes[:, 1]}
    if unit == 'images':
        return measures
    if unit == 'pixels':
        return {**measures, 'classes in an image': np.array(found.numbers)}
    boxes = np.array(found.box_sizes).reshape(-1, 2)
    measures['objects in an image'] = np.array(found.numbers)
    return {**measures, 'size of boxes (root of the area)': np.sqrt(boxes.prod(axis=1))}


def histograms_of(found: Inspection, unit: str) -> dict[str, dict[str, list]]:
    """Edges and counts of histograms; numbers have a bin each, if they are few."""
    histograms = {}
    for name, values in measures_of(found, unit).items():
        if len(values):
            is_number = name.endswith('in an image')
            bins = np.arange(values.max() + 2) - 0.5 if is_number and values.max() < 50 else 40
            counts, edges = np.histogram(values, bins)
            histograms[name] = dict(edges=edges.tolist(), counts=counts.tolist())
    return histograms


def draw(found: Inspection, unit: str, histograms: dict[str, dict[str, list]]) -> Figure:
    """Draw the most frequent classes, and the histograms."""
    order = np.argsort(-found.amounts, kind='stable')
    order = order[found.amounts[order] > 0][:MAX_BARS]
    height = max(6.0, 1 + 0.16 * len(order))
    figure = Figure(figsize=(13, height), layout='constrained')
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
    for axis, (name, histogram) in zip(axes, histograms.items()):
        draw_histogram(axis, name, histogram)
    for axis in axes[len(histograms) :]:
        axis.axis('off')
    return figure


def draw_histogram(axis: Axes, name: str, histogram: dict[str, list]) -> None:
    axis.stairs(histogram['counts'], histogram['edges'], fill=True)
    axis.set(xlabel=name if name.endswith('in an image') else f'{name} (pixels)')
    axis.set_ylabel('boxes' if 'boxes' in name else 'images')
    axis.tick_params(labelsize=7)


def print_problems(problems: list[Problem]) -> None:
    """Print the number of problems of each kind, and the first ones."""
    if not problems:
        print('nothing is wrong')
        return
    kinds = Counter(problem.kind for problem in problems)
    print_table('what is wrong', ('', 'number'), kinds.most_common())
    for kind in kinds:
        of_kind = [problem for problem in problems if problem.kind == kind]
        for problem in of_kind[:NUM_PRINTED]:
            print(printable(f'{kind}: {problem.file}' + (f': {problem.detail}' if problem.detail else '')))
        if len(of_kind) > NUM_PRINTED:
            print(f'{kind}: and {len(of_kind) - NUM_PRINTED} more, see problems.csv')


if __name__ == '__main__':
    main()
