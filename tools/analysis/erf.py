#!/usr/bin/env python
"""Effective receptive fields of a model's outputs, or of several models side by side.

After section 2 of Kim et al., BMVC 2023 (Gaussian attention bias): the gradient of the central feature of an output,
averaged over its channels, with respect to the image, averaged over the colours, ReLU, averaged over images. For
each field the fraction of the image's area that holds 20, 50, 80 and 99 % of it, and the Gaussian that fits it.
"""

import argparse
from pathlib import Path

import bioattn_mm.cli.threads  # noqa: F401

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from rich.progress import Progress

from bioattn_mm.analysis.gaussian_fit import draw_ellipses
from bioattn_mm.analysis.images import ImageReader, find_images
from bioattn_mm.analysis.models import build_backbone
from bioattn_mm.analysis.receptive_field import SHARES, area_fractions, fit_field, receptive_fields
from bioattn_mm.cli.command_line import ToolParser, models_to_compare, run_tool
from bioattn_mm.cli.config import load_config
from bioattn_mm.cli.reports import Report, print_table, unique_name

FILES = ('erf.csv', 'erf.json', 'erf.npz', 'erf.png')
AREAS = tuple(f'area_{100 * share:g}' for share in SHARES)
# Contributions below this fraction of the largest one are drawn like it.
DARKEST = 1e-4


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'analysis/erf.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth --out erf',
        'analysis/erf.py configs/gab/upernet_vit_small_ade20k.py gab.pth '
        '--compare configs/convit/upernet_tiny_ade20k.py convit.pth '
        '--compare configs/pervit/upernet_tiny_ade20k.py --out erf --size 256 384',
    )
    parser.add_compare()
    parser.add_backbone_arguments(', '.join(FILES), max_images=32, size=(224, 224))
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    report = Report(args.out, *FILES)
    models = models_to_compare(args)
    configs = []
    for path, _ in models:
        # Only the images of the first config are used.
        dataloaders = () if configs or args.images else ('val_dataloader',)
        configs.append(load_config(path, mini=args.mini, cfg_options=args.cfg_options, dataloaders=dataloaders))
    images = find_images(configs[0], args.images, args.max_images)

    rows, fields, weights = [], {}, {}
    with Progress() as progress:
        task = progress.add_task('', total=len(configs) * len(images))
        for (path, checkpoint), config in zip(models, configs):
            name = unique_name(path, weights)
            progress.update(task, description=name)
            backbone, weights[name] = build_backbone(config, checkpoint, args.device)
            reader = ImageReader(config, args.size, args.device)
            inputs = (reader(image).inputs for image in progress.track(images, task_id=task))
            fields[name] = receptive_fields(backbone, inputs)
            for index, (output, field) in enumerate(zip(backbone.out_indices, fields[name])):
                rows.append(measure(name, output, backbone.out_channels[index], field))

    report.write_csv('erf.csv', rows)
    report.write_json('erf.json', dict(weights=weights, images=len(images), fields=rows))
    arrays = (field for of_model in fields.values() for field in of_model)
    arrays = {f'{row["model"]}, output {row["output"]}': array for row, array in zip(rows, arrays)}
    np.savez_compressed(report.path('erf.npz'), **arrays)
    report.write_figure('erf.png', draw(rows, fields, weights))
    for name, source in weights.items():
        print_fields(f'{name}, {source}', [row for row in rows if row['model'] == name])
    print(report)


def measure(model: str, output: int, channels: int, field: np.ndarray) -> dict:
    """One row of the table."""
    areas = dict(zip(AREAS, area_fractions(field)))
    height, width = field.shape
    return dict(
        model=model, output=output, channels=channels, height=height, width=width, **areas, **fit_field(field)
    )


def draw(rows: list[dict], fields: dict[str, list[np.ndarray]], weights: dict[str, str]) -> Figure:
    """Draw a line of fields for each model on a logarithmic scale, with the fitted Gaussians at one and two sigma."""
    columns = max(map(len, fields.values()))
    height, width = next(iter(fields.values()))[0].shape
    # For each model fields that are three inches wide, and 1.5 inches of text.
    size = (3.2 * columns + 0.8, (3 * height / width + 1.5) * len(fields))
    figure = Figure(figsize=size, layout='constrained')
    rows = iter(rows)
    for line, (model, of_model) in zip(figure.subfigures(len(fields), 1, squeeze=False).flat, fields.items()):
        line.suptitle(f'{model}, {Path(weights[model]).name}', fontsize=9)
        axes = line.subplots(1, columns, squeeze=False)[0]
        for axis in axes[len(of_model) :]:
            axis.axis('off')
        for axis, field in zip(axes, of_model):
            row = next(rows)
            image = axis.imshow(
                np.maximum(field / (field.max() or 1), DARKEST), norm=LogNorm(DARKEST, 1), cmap='viridis'
            )
            draw_ellipses(axis, ((width - 1) / 2, (height - 1) / 2), row)
            axis.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
            axis.set_title(describe(row), fontsize=7)
            axis.tick_params(labelsize=6)
        line.colorbar(image, ax=axes, label='contribution, largest = 1').ax.tick_params(labelsize=6)
    return figure


def describe(row: dict) -> str:
    title = f'output {row["output"]}, {row["channels"]} channels\n'
    if row['r_squared'] != row['r_squared']:
        return f'{title}the mean over the channels is constant'
    areas = [f'{100 * share:g} % in {100 * row[area]:.3g} %' for share, area in zip(SHARES, AREAS)]
    fit = f'sigma {row["sigma_x"]:.1f} x {row["sigma_y"]:.1f} pixels, R^2 {row["r_squared"]:.2f}'
    return f'{title}{", ".join(areas[:2])} of the area\n{", ".join(areas[2:])}\n{fit}'


def print_fields(title: str, rows: list[dict]) -> None:
    areas = (f'{100 * share:g} % in' for share in SHARES)
    cells = []
    for row in rows:
        measures = (f'{100 * row[area]:.3g}' for area in AREAS)
        fit = (f'{row[key]:.3g}' for key in ('sigma_x', 'sigma_y', 'r_squared'))
        cells.append((row['output'], *measures, *fit))
    title = f'{title}; areas in % of the image, lengths in pixels'
    print_table(title, ('output', *areas, 'sigma x', 'sigma y', 'R^2'), cells)
    constant = [str(row['output']) for row in rows if row['r_squared'] != row['r_squared']]
    if constant:
        print(
            f'no field of output {", ".join(constant)}: the mean over its channels is constant (untrained LayerNorm)'
        )


if __name__ == '__main__':
    main()
