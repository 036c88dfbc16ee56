#!/usr/bin/env python
"""Losses, learning rates and metrics of training runs, one line a run, one panel a quantity.

Reads what mmengine writes into work dirs. The pieces of a resumed run are joined; where they overlap the later one
counts. Everything is drawn over iterations; a validation after an epoch is placed at the last iteration that was
logged before it.
"""

import argparse
import math
import re
from fnmatch import fnmatchcase
from itertools import cycle, product

import bioattn_mm.process_settings  # noqa: F401

from matplotlib import color_sequences, colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bioattn_mm.analysis.training_log import Curve, TrainingLog, run_names, smooth
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.reports import Report, print_table
from bioattn_mm.errors import InputError
from bioattn_mm.runtime.arguments import number_to

FILES = ('log.png', 'log.csv', 'log.json')
# Okabe and Ito's colours, which the colour-blind can tell apart; black is for text. Each run also has its dashes, so
# that curves can be told apart in print and where one lies on another; 7 colours with 4 dashes are 28 styles.
COLORS, DASHES = color_sequences['okabe_ito'][1:], ('-', '--', ':', '-.')
# What `AttentionStatisticsHook` logs: a measure, the layer, and maybe the head.
ATTENTION = re.compile(r'(?P<measure>attention/.+)/layer(?P<layer>\d+)(/head(?P<head>\d+))?')
# Layers from the first to the last, dark to bright, but not so bright that a line is lost on white.
LAYER_COLORS, BRIGHTEST = colormaps['viridis'], 0.9
# Losses of the decoder's intermediate layers, such as d0.loss_cls and decode.d0.loss_cls.
INTERMEDIATE = re.compile(r'(^|\.)d\d+\.')
MAX_COLUMNS = 4


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'analysis/plot_log.py work_dirs/transnext/upernet_tiny_ade20k work_dirs/convit/upernet_tiny_ade20k --out log',
        "analysis/plot_log.py work_dirs/transnext/dino_4scale_tiny_coco --out log --keys loss 'd*.loss_bbox' lr",
    )
    parser.add_argument(
        'runs',
        nargs='+',
        metavar='WORK_DIR',
        help='work dir of a training; or a folder named by time in it, or a scalars.json, for one start of it; or '
        'the steps.jsonl in it, for every step',
    )
    parser.add_out(', '.join(FILES))
    parser.add_argument(
        '--keys',
        nargs='+',
        metavar='PATTERN',
        help="what to draw, such as loss, 'd*.loss_cls', mIoU, grad_norm, 'attention/gate/*' or '*' (default: losses "
        "except those of intermediate decoder layers, learning rates, the validation's metrics, and what "
        'AttentionStatisticsHook logs)',
    )
    parser.add_argument(
        '--by-layer',
        action='store_true',
        help='a panel for each layer of a measure of attention, with a line for each head and a black one for their '
        'mean (ConViT, figure 6); the hook logs heads with per_head=True',
    )
    parser.add_argument(
        '--by-run',
        action='store_true',
        help='a panel for each run of a measure of attention, on one scale (ConViT, figure 5)',
    )
    parser.add_argument(
        '--names', nargs='+', metavar='NAME', help='a name for each run (default: the ends of the paths)'
    )
    parser.add_argument(
        '--smooth',
        type=number_to(1),
        default=0.0,
        metavar='WEIGHT',
        help='weight of the past in an exponential moving average of what training logs, 0 to below 1, such as 0.9; '
        'the values themselves are drawn pale behind it and written to the files (default: 0, none)',
    )
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    report = Report(args.out, *FILES)
    if not 0 <= args.smooth < 1:
        raise InputError(f'--smooth must be at least 0 and less than 1, got {args.smooth:g}')
    if args.names and len(args.names) != len(args.runs):
        raise InputError(f'--names must name each of the {len(args.runs)} runs, got {len(args.names)} names')
    if args.names and len(set(args.names)) < len(args.names):
        raise InputError(f'--names must differ, got {" ".join(args.names)}')
    names = args.names or run_names(args.runs)
    logs = {name: TrainingLog.read(path) for name, path in zip(names, args.runs)}
    keys = choose_keys(logs, args.keys)

    report.write_csv('log.csv', [row for name, log in logs.items() for row in rows_of(name, log, keys)])
    document = [
        dict(
            name=name,
            files=list(map(str, log.files)),
            curves={key: summarize(log.curves[key]) for key in keys if key in log.curves},
        )
        for name, log in logs.items()
    ]
    report.write_json('log.json', document)
    report.write_figure('log.png', draw(logs, keys, args.smooth, args.by_layer, args.by_run))
    print_runs(document, keys if args.keys else [key for key in keys if key == 'loss' or is_metric(key, logs)])
    print(report)


def is_metric(key: str, logs: dict[str, TrainingLog]) -> bool:
    return any(key in log.validation for log in logs.values())


def print_runs(document: list[dict], keys: list[str]) -> None:
    """Print the last and the extreme values of some curves."""
    cells = []
    for key, run in product(keys, document):
        if key in run['curves']:
            last, lowest, highest = (run['curves'][key][which] for which in ('last', 'lowest', 'highest'))
            places = (f'{point["value"]:.4g} ({point["iteration"]})' for point in (last, lowest, highest))
            cells.append((key, run['name'], *places))
    print_table('values and their iterations', ('', 'run', 'last', 'lowest', 'highest'), cells)


def choose_keys(logs: dict[str, TrainingLog], patterns: list[str] | None) -> list[str]:
    """The keys to draw: those that match a pattern, in the order of the patterns, or the usual ones.

    Raises:
        InputError: A pattern matches nothing.
    """
    training, validation = (
        list(dict.fromkeys(key for log in logs.values() for key in getattr(log, part)))
        for part in ('training', 'validation')
    )
    if patterns is None:
        losses = [key for key in training if 'loss' in key and not INTERMEDIATE.search(key)]
        # The rate of the first group of parameters, and that of a factor of 1, which is the same in most runs.
        rates = [key for key in training if key.endswith('lr')]
        same = all(log.training.get('base_lr') == log.training.get('lr') for log in logs.values())
        # COCO's AP is -1 where there are no objects of a size.
        known = {
            key: [value for log in logs.values() for value in log.validation.get(key, {}).values()]
            for key in validation
        }
        metrics = [key for key, values in known.items() if any(value != -1 for value in values)]
        usual = losses + [key for key in rates if not (same and key == 'base_lr')] + metrics
        usual += [key for key in training if ATTENTION.fullmatch(key)]
        if not usual:
            raise InputError(f'neither losses nor metrics were logged: choose from {", ".join(training)} with --keys')
        return usual
    chosen = {}
    for pattern in patterns:
        matches = [key for key in training + validation if fnmatchcase(key, pattern)]
        if not matches:
            raise InputError(f'--keys {pattern} matches nothing; logged were {", ".join(training + validation)}')
        chosen.update(dict.fromkeys(matches))
    return list(chosen)


def rows_of(name: str, log: TrainingLog, keys: list[str]) -> list[dict]:
    """The rows of a run in the table: one an iteration at which something was logged."""
    curves = {key: log.curves[key] for key in keys if key in log.curves}
    iterations = sorted({iteration for curve in curves.values() for iteration in curve})
    rows = []
    for iteration in iterations:
        epoch = dict(epoch=log.epochs[iteration]) if iteration in log.epochs else {}
        values = {key: curve[iteration] for key, curve in curves.items() if iteration in curve}
        rows.append(dict(run=name, iteration=iteration, **epoch, **values))
    return rows


def summarize(curve: Curve) -> dict[str, dict[str, float]]:
    """First, last, lowest and highest value of a curve with their iterations; NaN is neither lowest nor highest."""
    iterations = list(curve)
    finite = [iteration for iteration in iterations if math.isfinite(curve[iteration])] or iterations
    chosen = dict(
        first=iterations[0],
        last=iterations[-1],
        lowest=min(finite, key=curve.get),
        highest=max(finite, key=curve.get),
    )
    return {name: dict(iteration=iteration, value=curve[iteration]) for name, iteration in chosen.items()}


def draw(
    logs: dict[str, TrainingLog], keys: list[str], weight: float, by_layer: bool = False, by_run: bool = False
) -> Figure:
    """Draw a panel for each key, or each measure of attention, with lines for each run, and the runs' names above.

    Args:
        logs: The runs by their names.
        keys: What is drawn.
        weight: See `smooth`.
        by_layer: A measure of attention has a panel for each layer.
        by_run: A measure of attention has a panel for each run, with the same scale.
    """
    panels = {}
    for key in sorted(keys, key=place_of):
        match = ATTENTION.fullmatch(key)
        measure = match['measure'] if match else key
        of_layer = f', layer {match["layer"]}' if match and by_layer else ''
        for name in logs if match and by_run else [None]:
            of_run, runs = (f', {name}', {name: logs[name]}) if name else ('', logs)
            panels.setdefault(measure + of_layer + of_run, (measure, runs, []))[2].append(key)
    columns = min(MAX_COLUMNS, math.ceil(math.sqrt(len(panels))))
    lines = math.ceil(len(panels) / columns)
    legend_columns = columns if max(map(len, logs)) < 40 else 1
    legend_height = 0.25 * math.ceil(len(logs) / legend_columns) + 0.2
    figure = Figure(figsize=(max(4 * columns, 6), 3 * lines + legend_height), layout='constrained')
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    styles = dict(zip(logs, zip(cycle(COLORS), cycle(DASHES))))
    scales = {}
    for axis, (title, (measure, runs, of_panel)) in zip(axes, panels.items()):
        axis.set_title(title, fontsize=9)
        axis.set_xlabel('iteration', fontsize=8)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
        if ATTENTION.fullmatch(of_panel[0]):
            (draw_heads if by_layer else draw_layers)(axis, runs, of_panel, styles)
            if by_layer or by_run:
                axis.sharey(scales.setdefault(measure, axis))
            continue
        (key,) = of_panel
        for name, log in logs.items():
            if key in log.curves:
                draw_curve(axis, log.curves[key], styles[name], weight if is_smoothed(key, log) else 0.0)
    for axis in axes[len(panels) :]:
        axis.axis('off')
    handles = [Line2D([], [], color=color, linestyle=dashes, label=name) for name, (color, dashes) in styles.items()]
    figure.legend(handles=handles, loc='outside upper left', ncols=legend_columns, fontsize=8, frameon=False)
    return figure


def draw_layers(
    axis: Axes, logs: dict[str, TrainingLog], keys: list[str], styles: dict[str, tuple[str, str]]
) -> None:
    """Draw a measure of attention: a line for each layer, coloured by depth, with the dashes of the run.

    Of heads there is a pale line each, and the mean.
    """
    layers = {key: int(ATTENTION.fullmatch(key)['layer']) for key in keys}
    norm = Normalize(0, max(1, *layers.values()) / BRIGHTEST)
    for name, log in logs.items():
        for layer in sorted(set(layers.values())):
            curves = [log.curves[key] for key, of_key in layers.items() if of_key == layer and key in log.curves]
            color, dashes = LAYER_COLORS(norm(layer)), styles[name][1]
            for curve in curves if len(curves) > 1 else ():
                axis.plot(list(curve), list(curve.values()), color=color, alpha=0.3, linewidth=0.7)
            draw_curve(axis, mean_of(curves), (color, dashes), 0.0)
    last = max(layers.values())
    boundaries, ticks = [layer - 0.5 for layer in range(last + 2)], range(0, last + 1, max(1, last // 4))
    colors = ScalarMappable(norm, LAYER_COLORS)
    bar = axis.figure.colorbar(colors, ax=axis, boundaries=boundaries, ticks=ticks)
    bar.set_label('layer', fontsize=7)
    bar.ax.tick_params(labelsize=6)


def draw_heads(axis: Axes, logs: dict[str, TrainingLog], keys: list[str], styles: dict[str, tuple[str, str]]) -> None:
    """Draw a measure of the heads of one layer: a line for each, and a black one for their mean."""
    for name, log in logs.items():
        curves = [log.curves[key] for key in keys if key in log.curves]
        for curve in curves:
            axis.plot(list(curve), list(curve.values()), linestyle=styles[name][1], linewidth=0.9)
        draw_curve(axis, mean_of(curves), ('black', styles[name][1]), 0.0)


def mean_of(curves: list[Curve]) -> Curve:
    """The mean of some curves at the iterations that all of them have."""
    return {
        iteration: sum(curve[iteration] for curve in curves) / len(curves)
        for iteration in (curves[0] if curves else ())
        if all(iteration in curve for curve in curves)
    }


def place_of(key: str) -> tuple[int, int]:
    """The layer and head of a measure of attention, by which its lines are sorted; of others none."""
    match = ATTENTION.fullmatch(key)
    return (int(match['layer']), int(match['head'] or 0)) if match else (-1, 0)


def is_smoothed(key: str, log: TrainingLog) -> bool:
    """Whether a curve has noise: rates have none, and validations are few."""
    return key in log.training and not key.endswith('lr')


def draw_curve(axis: Axes, curve: Curve, style: tuple[str, str], weight: float) -> None:
    """Draw a curve, with markers where it has few points."""
    color, dashes = style
    marker = 'o' if len(curve) <= 20 else None
    if weight:
        axis.plot(list(curve), list(curve.values()), color=color, alpha=0.25, linewidth=0.8)
        marker = None
    axis.plot(list(curve), smooth(curve.values(), weight), color=color, linestyle=dashes, marker=marker, markersize=3)


if __name__ == '__main__':
    main()
