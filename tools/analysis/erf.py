#!/usr/bin/env python
"""Effective receptive fields of a model's outputs, or of several models side by side.

After section 2 of Kim et al., BMVC 2023 (Gaussian attention bias): the gradient of the central feature of an output,
averaged over its channels, with respect to the image, averaged over the colours, ReLU, averaged over images. Of each
field you get the fraction of the image's area that holds 20, 50, 80 and 99 % of it, and the Gaussian that fits it.

Models are backbones of configs, of this package, mmdet, mmseg or mmpretrain, and models of timm (--timm). Each model
has a line of fields, and more lines for corruptions, for an attack and for re-initialised position embeddings. These
are compared with the field on clean images: by correlation, and by the overlap (IoU) of the fifth of the pixels that
contributes most. With --output the models stand side by side (TransNeXt, figures 2 and 9; GAB, figures 1 to 4).
"""

import argparse
from pathlib import Path

import bioattn_mm.cli.threads_and_memory  # noqa: F401

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from rich.progress import Progress

from bioattn_mm.analysis.conditions import CLEAN, Changes, Model
from bioattn_mm.analysis.figures import draw_ellipses
from bioattn_mm.analysis.images import find_images
from bioattn_mm.analysis.maps import consistency
from bioattn_mm.analysis.models import numbered, output_numbers, read_sources, with_initial_positions
from bioattn_mm.analysis.receptive_field import SHARES, area_fractions, fit_field, receptive_fields
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.reports import Report, print_table

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
    help = (
        'draw output N of all models side by side, from 0, or from the end with -1 (default: all outputs, a line a '
        'model)'
    )
    parser.add_argument('--output', type=int, metavar='N', help=help)
    help = (
        'repeat it with position embeddings and biases reset to their initial values (figure 4 of the paper on GAB)'
    )
    parser.add_argument('--reinit-position', action='store_true', help=help)
    parser.add_shared('--corrupt', '--attack', '--epsilon')
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
            model = Model.build(source, changes, args.size, args.device)
            weights[source.name] = model.weights
            lines = {condition: (model.backbone, read) for condition, read in model.readers.items()}
            if args.reinit_position:
                changed = with_initial_positions(model.backbone, source.config, args.device, args.size)
                lines[REINITIALISED] = changed, model.readers[CLEAN]
            progress.update(task, total=len(sources) * len(lines) * len(images))
            clean = []
            for condition, (backbone, read) in lines.items():
                progress.update(task, description=f'{source.name}, {condition}')
                inputs = (read(image).inputs for image in progress.track(images, task_id=task))
                of_line = receptive_fields(backbone, inputs)
                outputs = output_numbers(model.backbone, len(of_line))
                if args.output is not None:
                    of_line, outputs = ([numbered(values, args.output, '--output')] for values in (of_line, outputs))
                clean = clean or of_line
                for output, field, other in zip(outputs, of_line, clean, strict=True):
                    place = dict(model=source.name, condition=condition, output=output)
                    compared = {} if condition == CLEAN else consistency(other, field)
                    rows.append(place | measure(field) | compared)
                fields += of_line

    report.write_csv('erf.csv', rows)
    report.write_json('erf.json', dict(weights=weights, images=len(images), fields=rows))
    arrays = {f'{", ".join(place_of(row))}, output {row["output"]}': field for row, field in zip(rows, fields)}
    np.savez_compressed(report.path('erf.npz'), **arrays)
    report.write_figure('erf.png', draw(rows, fields, weights, by_model=args.output is None))
    of_lines = {}
    for row in rows:
        of_lines.setdefault((row['model'], row['condition']), []).append(row)
    for (name, condition), of_line in of_lines.items():
        print_fields(f'{name}, {weights[name]}, {condition}', of_line)
    print(report)


def measure(field: np.ndarray) -> dict[str, float]:
    """The size of a field, the areas that hold parts of it, and the Gaussian that fits it."""
    size = dict(height=field.shape[0], width=field.shape[1])
    return size | dict(zip(AREAS, area_fractions(field))) | fit_field(field)


def place_of(row: dict) -> list[str]:
    """The model and, if it got other images or positions than its own, the condition of a field."""
    return [row['model'], *([] if row['condition'] == CLEAN else [row['condition']])]


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
        name, *changed = place_of(row)
        model = f'{name}, {Path(weights[name]).name}'
        line = ', '.join([model, *changed]) if by_model else row['condition']
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
            shown = np.maximum(field / (field.max() or 1), DARKEST)
            image = axis.imshow(shown, norm=LogNorm(DARKEST, 1), cmap='viridis')
            draw_ellipses(axis, ((width - 1) / 2, (height - 1) / 2), row)
            axis.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
            axis.set_title(title, fontsize=7)
            axis.tick_params(labelsize=6)
        part.colorbar(image, ax=axes, label='contribution, largest = 1', format='%g').ax.tick_params(labelsize=6)
    figure.supxlabel('pixels', fontsize=7)
    return figure


def describe(row: dict) -> str:
    title = f'output {row["output"]}\n'
    if np.isnan(row['r_squared']):
        return f'{title}the mean over the channels is constant'
    areas = [f'{100 * share:g} % in {100 * row[area]:.3g} %' for share, area in zip(SHARES, AREAS)]
    fit = f'sigma {row["sigma_x"]:.1f} x {row["sigma_y"]:.1f} pixels, R^2 {row["r_squared"]:.2f}'
    compared = f'\ncorrelation {row["correlation"]:.2f}, IoU {row["iou"]:.2f}' if 'iou' in row else ''
    return f'{title}{", ".join(areas[:2])} of the area\n{", ".join(areas[2:])}\n{fit}{compared}'


def print_fields(title: str, rows: list[dict]) -> None:
    """Print the fields of a model in one state of the images."""
    cells = []
    for row in rows:
        sigma = f'{row["sigma_x"]:.3g} x {row["sigma_y"]:.3g}'
        more = (f'{row[key]:.2f}' for key in ('r_squared', 'correlation', 'iou') if key in row)
        cells.append((row['output'], *(f'{100 * row[area]:.2g}' for area in AREAS), sigma, *more))
    columns = ('output', *(f'{100 * share:g} %' for share in SHARES), 'sigma', 'R^2', 'corr.', 'IoU')
    title = f'{title}; percent of the area that hold parts of the field, sigma in pixels'
    print_table(title, columns[: len(cells[0])], cells)
    if constant := ', '.join(str(row['output']) for row in rows if np.isnan(row['r_squared'])):
        print(f'no field of output {constant}: the mean over its channels is constant (untrained LayerNorm)')


if __name__ == '__main__':
    main()
