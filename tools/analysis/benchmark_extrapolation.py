#!/usr/bin/env python
"""Accuracy and time over the input size, for each of TransNeXt's position biases (TransNeXt, table 5 and figure 6).

Detectors and segmentors get whole images whose short side has the size, with the aspect ratio kept. Classifiers get
what TransNeXt's authors take: below 384 pixels the central square, 224 / 256 of the short side; from 384 pixels the
whole image, stretched to a square. --compare and --timm test other classifiers on the same images.
"""

import argparse
import copy
import functools
import statistics
from collections.abc import Callable

import bioattn_mm.cli.threads_and_memory  # noqa: F401

from matplotlib.figure import Figure
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner

from bioattn_mm.analysis.evaluation import TrainedModel, beside, choose_metric, timm_classifier
from bioattn_mm.analysis.models import PRETRAINED
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.reports import Report, print_table, progress_of_tests
from bioattn_mm.errors import InputError
from bioattn_mm.registry import MODELS
from bioattn_mm.runtime.files import unique_name
from bioattn_mm.systems.transnext.backbone import TEST_MODES
from bioattn_mm.training.config.loading import load_config, set_bias_mode
from bioattn_mm.training.config.model_check import model_of
from bioattn_mm.training.runner import now

FILES = ('table.csv', 'plot.png')
SIZES = (224, 320, 448, 512, 640, 768, 896, 1024)
# Classifiers are tested on crops of this ratio to the short side, and on whole images from this size in pixels.
CROP_RATIO = 224 / 256
WHOLE_FROM = 384
# Those of TransNeXt's table 5.
CLASSIFICATION_SIZES = (224, 256, 320, 384, 480, 512, 640)
# A model with a position bias, or None for one without a choice, as a function of the size of the images.
Entrant = tuple[str, str | None, Callable[[int], TrainedModel]]


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'analysis/benchmark_extrapolation.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth '
        '--out extrapolation',
        'analysis/benchmark_extrapolation.py configs/transnext/transnext-tiny_8xb128_in1k.py '
        'transnext_tiny_224_1k.pth --timm convnext_base.fb_in1k pretrained --out extrapolation',
    )
    parser.add_shared('config', 'checkpoint')
    parser.add_out(', '.join(FILES))
    of_all, of_classifiers = (' '.join(map(str, sizes)) for sizes in (SIZES, CLASSIFICATION_SIZES))
    help = f'short sides in pixels (default: {of_all}; for classifiers {of_classifiers})'
    parser.add_integer('--sizes', minimum=32, nargs='+', help=help)
    help = (
        f'position biases of TransNeXt (default: all): {", ".join(TEST_MODES)} (extrapolated, without length scaling)'
    )
    parser.add_argument('--modes', nargs='+', choices=TEST_MODES, metavar='MODE', help=help)
    for option, name, help in (
        ('--compare', 'CONFIG', "another classifier to test, also from mmpretrain's configs"),
        ('--timm', 'NAME', f"a classifier of timm to test; '{PRETRAINED}' takes timm's own weights"),
    ):
        help += '; repeat the option for more'
        names = (name, 'CHECKPOINT')
        parser.add_argument(option, nargs=2, action='append', default=[], metavar=names, help=help)
    parser.add_shared('--metric')
    parser.add_config_options()
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    report = Report(args.out, *FILES)
    # Images are tested whole, as with --tta, so that the backbone sees the size that is asked for.
    options = dict(mini=args.mini, cfg_options=args.cfg_options, dataloaders=('test_dataloader',))
    config = load_config(args.config, tta=True, **options)
    sizes = args.sizes or (CLASSIFICATION_SIZES if config.default_scope == 'mmpretrain' else SIZES)
    entrants = read_entrants(args, config)
    logs = str(report.path('logs'))

    rows = []
    with progress_of_tests() as progress:
        task = progress.add_task('', total=len(entrants) * len(sizes))
        for name, mode, model_at in entrants:
            for size in sizes:
                progress.update(task, description=f'{label(name, mode)}, {size} pixels')
                measured = measure(name, mode, model_at(size), size, args.metric, logs)
                rows.append(dict(model=name, bias_mode=mode, **measured))
                report.write_csv('table.csv', rows)  # written now, so that an interruption loses nothing
                progress.advance(task)
    report.write_figure('plot.png', draw(rows))
    cells = []
    for row in rows:
        values = f'{row["value"]:.4g}', f'{row["seconds_per_image"]:.3f}'
        cells.append((label(row['model'], row['bias_mode']), row['size'], *values))
    print_table(rows[0]['metric'], ('model', 'size', rows[0]['metric'], 'seconds an image'), cells)
    print(report)


def read_entrants(args: argparse.Namespace, config: Config) -> list[Entrant]:
    """The models that are tested, each TransNeXt with all its position biases.

    Raises:
        InputError: A model cannot be tested, or there is no TransNeXt for the position biases that are asked for.
    """
    configs, entrants = {unique_name(args.config, []): (config, args.checkpoint)}, []
    for path, checkpoint in args.compare:
        other = load_config(path, mini=args.mini)
        configs[unique_name(path, configs)] = (beside(config, other), checkpoint)
    for name, (of_model, checkpoint) in configs.items():
        modes = bias_modes(of_model, args.modes)
        for mode in modes:
            if mode:
                set_bias_mode(copy.deepcopy(of_model), mode)  # all are built before hours of tests
        model = TrainedModel.read(of_model, checkpoint)
        model.weights_for(model_of(of_model))
        entrants += [(name, mode, lambda size, model=model: model) for mode in modes]
    for name, checkpoint in args.timm:
        # Some of timm's models are built for one size.
        model_at = functools.partial(timm_classifier, config, name, checkpoint)
        model_at(CLASSIFICATION_SIZES[0])
        entrants.append((unique_name(f'{name}.py', [entrant[0] for entrant in entrants]), None, model_at))
    if args.modes and not any(mode for _, mode, _ in entrants):
        raise InputError('--modes is for bioattn_mm.TransNeXt, which none of the models has: leave it out')
    return entrants


def bias_modes(config: Config, wanted: list[str] | None) -> list[str | None]:
    """The position biases that a model is tested with: those that are asked for, else all; of others than TransNeXt
    the one that it has, None.
    """
    backbone = config.model.get('backbone') or {}
    if not hasattr(MODELS.get(str(backbone.get('type'))), 'position_bias_settings'):
        return [None]
    # Other token mixers than TransNeXt's own may have no length scaling.
    return wanted or [mode for mode in TEST_MODES if mode != 'unscaled' or not backbone.get('token_mixers')]


def label(name: str, mode: str | None) -> str:
    return f'{name}, {mode}' if mode else name


def measure(name: str, mode: str | None, model: TrainedModel, size: int, metric: str | None, work_dir: str) -> dict:
    """Test a model with one position bias at one size: the numbers of a row of the table."""
    config = copy.deepcopy(model.config)
    config.work_dir = work_dir
    if mode:
        set_bias_mode(config, mode)
    resize = set_crop_size if config.default_scope == 'mmpretrain' else set_size
    resize(config.test_dataloader.dataset.pipeline, size)
    config.experiment_name = f'{label(name, mode)}_{size}'.replace('/', '_')
    stopwatch = Stopwatch()
    try:
        metrics = model.test(config, stopwatch)
    except AssertionError as error:  # some of timm's models take some sizes alone
        reason = f'{error}; leave the size or the model out'
        raise InputError(f'{name} takes no images of {size} pixels: {reason}') from error
    metric = choose_metric(metrics, metric)
    seconds = statistics.median(stopwatch.seconds)
    return dict(size=size, metric=metric, value=metrics[metric], seconds_per_image=seconds)


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


def set_crop_size(pipeline: list[dict], size: int) -> None:
    """Let a classifier's pipeline give images of size x size pixels: their centre, from `WHOLE_FROM` on all of it."""
    places = [place for place, step in enumerate(pipeline) if step['type'] in ('ResizeEdge', 'Resize', 'CenterCrop')]
    if not places:
        raise InputError('the test pipeline of a classifier must have ResizeEdge and CenterCrop, or Resize')
    resize = pipeline[places[0]]
    options = {key: resize[key] for key in ('backend', 'interpolation') if key in resize}
    if size < WHOLE_FROM:
        steps = [
            dict(type='ResizeEdge', scale=int(size / CROP_RATIO), edge='short', **options),
            dict(type='CenterCrop', crop_size=size),
        ]
    else:
        steps = [dict(type='Resize', scale=(size, size), **options)]
    pipeline[places[0] : places[-1] + 1] = steps


def draw(rows: list[dict]) -> Figure:
    """Draw the metric and the time over the size, with a line for each model and position bias."""
    figure = Figure(figsize=(10, 4), layout='constrained')
    axes = figure.subplots(1, 2)
    entrants = list(dict.fromkeys((row['model'], row['bias_mode']) for row in rows))
    several = len({name for name, _ in entrants}) > 1
    for axis, column, title in zip(axes, ('value', 'seconds_per_image'), (rows[0]['metric'], 'seconds an image')):
        for entrant in entrants:
            points = sorted((row['size'], row[column]) for row in rows if (row['model'], row['bias_mode']) == entrant)
            name, mode = entrant
            axis.plot(*zip(*points), marker='o', label=label(name, mode) if several else mode or name)
        axis.set(xlabel='short side of the image (pixels)', ylabel=title)
        axis.grid(alpha=0.3)
    axes[0].legend(title='model' if several else 'position bias', fontsize=7)
    return figure


if __name__ == '__main__':
    main()
