#!/usr/bin/env python
"""Effective receptive fields of a model's outputs, or of several models side by side.

After section 2 of Kim et al., BMVC 2023 (Gaussian attention bias): the gradient of the central feature of an output,
averaged over its channels, with respect to the image, averaged over the colours, ReLU, averaged over images. For
each field the fraction of the image's area that holds 20, 50, 80 and 99 % of it, and the Gaussian that fits it.

The models are backbones of configs, of this package, mmdet, mmseg or mmpretrain, and models of timm (--timm). Each
has a line of fields, and further ones for each corruption, for an attack and for re-initialised position embeddings,
with the correlation of each field and the one on images as they are, and the overlap (IoU) of the fifth of their
pixels that contributes most. With --output the models stand side by side (TransNeXt, figures 2 and 9; GAB, figures 1
to 4).
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import bioattn_mm.process_settings  # noqa: F401

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from rich.progress import Progress
from torch import nn

from bioattn_mm.analysis.conditions import CLEAN, Changes, conditions_of
from bioattn_mm.analysis.consistency import consistency
from bioattn_mm.analysis.gaussian_fit import draw_ellipses
from bioattn_mm.analysis.images import PreparedImage, find_images
from bioattn_mm.analysis.models import (
    Source,
    build_backbone,
    output_numbers,
    read_sources,
    with_initial_positions,
)
from bioattn_mm.analysis.receptive_field import SHARES, area_fractions, fit_field, receptive_fields
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.reports import Report, print_table
from bioattn_mm.errors import InputError

FILES = ('erf.csv', 'erf.json', 'erf.npz', 'erf.png')
AREAS = tuple(f'area_{100 * share:g}' for share in SHARES)
REINITIALISED = 'position embeddings re-initialised'
# Contributions below this fraction of the largest one are drawn like it.
DARKEST = 1e-4


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'analysis/erf.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth --out erf',
        'analysis/erf.py configs/gab/upernet_vit_small_ade20k.py gab.pth '
        '--compare configs/convit/upernet_tiny_ade20k.py convit.pth '
        '--compare configs/pervit/upernet_tiny_ade20k.py --out erf --size 256 384',
        'analysis/erf.py --timm vit_relpos_base_patch16_224 pretrained --reinit-position --images photos --out erf',
        'analysis/erf.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth --corrupt gaussian_noise:3 fog:5 '
        '--attack pgd --epsilon 4/255 --out erf',
        'analysis/erf.py --timm vit_base_patch16_224 pretrained --timm resnet50 pretrained --output -1 --out erf',
    )
    parser.add_argument(
        '--output',
        type=int,
        metavar='N',
        help='measure one output of each model, and draw the models side by side: its number among the outputs, from '
        '0; negative numbers count from the end (default: all outputs, a line for each model)',
    )
    parser.add_argument(
        '--reinit-position',
        action='store_true',
        help='also with position embeddings and biases that have their initial values again, and all else as it is '
        '(figure 4 of the paper on GAB): what a model knows of places by them alone is gone',
    )
    parser.add_changes()
    parser.add_backbone_arguments(', '.join(FILES), max_images=32, size=(224, 224))
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    report = Report(args.out, *FILES)
    changes = Changes.read(args)
    sources = read_sources(args)
    images = find_images(sources[0].config, args.images, args.max_images)

    rows, fields, weights = [], [], {}
    with Progress() as progress:
        task = progress.add_task('')
        for source in sources:
            backbone, weights[source.name] = build_backbone(
                source.config, source.checkpoint, args.device, size=args.size
            )
            lines = lines_of(source, backbone, changes, args)
            progress.update(task, total=len(sources) * len(lines) * len(images))
            clean = []
            for condition, (model, read) in lines.items():
                progress.update(task, description=f'{source.name}, {condition}')
                inputs = (read(image).inputs for image in progress.track(images, task_id=task))
                of_line = receptive_fields(model, inputs)
                outputs = output_numbers(backbone, len(of_line))
                if args.output is not None:
                    of_line, outputs = ([choose(fields_, args.output)] for fields_ in (of_line, outputs))
                clean = clean or of_line
                for output, field, other in zip(outputs, of_line, clean, strict=True):
                    compared = {} if condition == CLEAN else consistency(other, field)
                    rows.append(measure(source.name, condition, output, field, compared))
                fields += of_line

    report.write_csv('erf.csv', rows)
    report.write_json('erf.json', dict(weights=weights, images=len(images), fields=rows))
    arrays = {array_name(row): field for row, field in zip(rows, fields, strict=True)}
    np.savez_compressed(report.path('erf.npz'), **arrays)
    report.write_figure('erf.png', draw(rows, fields, weights, by_model=args.output is None))
    for (name, condition), of_line in by_line(rows).items():
        print_fields(f'{name}, {weights[name]}, {condition}', of_line)
    print(report)


def choose(values: list, number: int) -> object:
    """One of the values of a model's outputs."""
    if not -len(values) <= number < len(values):
        raise InputError(f'--output must be {-len(values)} to {len(values) - 1} in this model, got {number}')
    return values[number]


def lines_of(
    source: Source, backbone: nn.Module, changes: Changes, args: argparse.Namespace
) -> dict[str, tuple[nn.Module, Callable[[Path], PreparedImage]]]:
    """The lines of fields of a model by their names: a backbone and what reads the images for it."""
    conditions = conditions_of(source.config, source.checkpoint, backbone, changes, args.size, args.device)
    lines = {condition.name: (backbone, condition.read) for condition in conditions}
    if args.reinit_position:
        changed = with_initial_positions(backbone, source.config, args.device, args.size)
        lines[REINITIALISED] = changed, conditions[0].read
    return lines


def measure(model: str, condition: str, output: int, field: np.ndarray, compared: dict[str, float]) -> dict:
    """One row of the table."""
    areas = dict(zip(AREAS, area_fractions(field)))
    height, width = field.shape
    place = dict(model=model, condition=condition, output=output, height=height, width=width)
    return dict(**place, **areas, **fit_field(field), **compared)


def array_name(row: dict) -> str:
    """Name of a field in the file of all fields."""
    changed = '' if row['condition'] == CLEAN else f', {row["condition"]}'
    return f'{row["model"]}{changed}, output {row["output"]}'


def by_line(rows: list[dict]) -> dict[tuple[str, str], list[dict]]:
    """The rows by model and condition."""
    lines = {}
    for row in rows:
        lines.setdefault((row['model'], row['condition']), []).append(row)
    return lines


def draw(rows: list[dict], fields: list[np.ndarray], weights: dict[str, str], by_model: bool = True) -> Figure:
    """Draw the fields on a logarithmic scale, with the fitted Gaussians at one and two sigma.

    Args:
        rows: What was measured.
        fields: The fields.
        weights: The weights of each model.
        by_model: A line for each model and condition, with its outputs; else one for each condition, with the models.
    """
    lines = {}
    for row, field in zip(rows, fields, strict=True):
        changed = '' if row['condition'] == CLEAN else row['condition']
        model = f'{row["model"]}, {Path(weights[row["model"]]).name}'
        line = ', '.join(filter(None, [model, changed])) if by_model else changed or CLEAN
        title = describe(row) if by_model else f'{model}\n{describe(row)}'
        lines.setdefault(line, []).append((title, row, field))
    columns = max(map(len, lines.values()))
    height, width = fields[0].shape
    # A model has fields three inches wide, and 1.5 inches of text.
    size = (3.2 * columns + 0.8, (3 * height / width + 1.5) * len(lines))
    figure = Figure(figsize=size, layout='constrained')
    parts = figure.subfigures(len(lines), 1, squeeze=False).flat
    for part, (line, of_line) in zip(parts, lines.items()):
        part.suptitle(line, fontsize=9)
        axes = part.subplots(1, columns, squeeze=False)[0]
        for axis in axes[len(of_line) :]:
            axis.axis('off')
        for axis, (title, row, field) in zip(axes, of_line):
            height, width = field.shape
            image = axis.imshow(
                np.maximum(field / (field.max() or 1), DARKEST), norm=LogNorm(DARKEST, 1), cmap='viridis'
            )
            draw_ellipses(axis, ((width - 1) / 2, (height - 1) / 2), row)
            axis.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
            axis.set_title(title, fontsize=7)
            axis.tick_params(labelsize=6)
        part.colorbar(image, ax=axes, label='contribution, largest = 1', format='%g').ax.tick_params(labelsize=6)
    figure.supxlabel('pixels', fontsize=7)
    return figure


def describe(row: dict) -> str:
    title = f'output {row["output"]}\n'
    if row['r_squared'] != row['r_squared']:
        return f'{title}the mean over the channels is constant'
    areas = [f'{100 * share:g} % in {100 * row[area]:.3g} %' for share, area in zip(SHARES, AREAS)]
    fit = f'sigma {row["sigma_x"]:.1f} x {row["sigma_y"]:.1f} pixels, R^2 {row["r_squared"]:.2f}'
    compared = f'\ncorrelation {row["correlation"]:.2f}, IoU {row["iou"]:.2f}' if 'iou' in row else ''
    return f'{title}{", ".join(areas[:2])} of the area\n{", ".join(areas[2:])}\n{fit}{compared}'


def print_fields(title: str, rows: list[dict]) -> None:
    cells = []
    for row in rows:
        measures = (f'{100 * row[area]:.2g}' for area in AREAS)
        compared = (f'{row[key]:.2f}' for key in ('correlation', 'iou') if key in row)
        sigma = f'{row["sigma_x"]:.3g} x {row["sigma_y"]:.3g}'
        cells.append((row['output'], *measures, sigma, f'{row["r_squared"]:.2f}', *compared))
    title = f'{title}; percent of the area that hold parts of the field, sigma in pixels'
    compared = ('corr.', 'IoU') if 'iou' in rows[0] else ()
    parts = (f'{100 * share:g} %' for share in SHARES)
    print_table(title, ('output', *parts, 'sigma', 'R^2', *compared), cells)
    constant = [str(row['output']) for row in rows if row['r_squared'] != row['r_squared']]
    if constant:
        print(
            f'no field of output {", ".join(constant)}: the mean over its channels is constant (untrained LayerNorm)'
        )


if __name__ == '__main__':
    main()
