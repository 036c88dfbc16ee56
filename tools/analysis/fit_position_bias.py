#!/usr/bin/env python
"""Fit a two-dimensional Gaussian to the position bias that each layer of a model has learned.

The bias is what a layer adds to the attention logits, averaged over heads: the learned table or MLP of relative
positions, and in GABViT and GABSwin the learned Gaussian, too. You see how well a Gaussian above the least value fits
a layer (R^2) and how wide it is (sigma, in patches), by lmfit as in table 1 of GAB (Kim et al., BMVC 2023).

'Centre patch' fits the bias of the patch in the middle towards all patches, as the paper does; 'offsets' fits the
bias of every offset between two patches.

slices.png draws for every patch its bias towards all patches, as figure 5 of GAB, and with --untrained that of random
weights below. centre_patch.png draws the patch in the middle, as figure 6.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import bioattn_mm.cli.threads_and_memory  # noqa: F401

import numpy as np
import timm
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from rich.progress import track
from timm.layers import RelPosBias, RelPosMlp
from timm.layers.pos_embed_rel import gen_relative_position_index
from torch import nn

from bioattn_mm.analysis.figures import draw_ellipses, panels
from bioattn_mm.analysis.maps import fit_gaussian
from bioattn_mm.analysis.models import PRETRAINED, build_backbone, numbered, timm_config
from bioattn_mm.cli.command_line import CHECKPOINT_KINDS, ToolParser, run_tool
from bioattn_mm.cli.reports import Report, print_table
from bioattn_mm.errors import InputError
from bioattn_mm.ops.relative_bias_attention import bias_of_queries
from bioattn_mm.systems.gab import GABSwin, GABViT
from bioattn_mm.training.config.loading import read_config
from bioattn_mm.training.installed import find_config

FILES = ('table.csv', 'table.json', 'centre_patch.png', 'offsets.png', 'slices.png')
CENTRE, OFFSETS = 'centre patch', 'offsets'
# Slices along each axis of a drawing; of larger grids every second patch has one, every third, and so on.
MAX_SLICES = 14
# Default grid for GABViT, in patches: that of the pre-training at 224 pixels.
VIT_GRID = (14, 14)


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'analysis/fit_position_bias.py vit_relpos_base_patch16_224 weights.pth --out fits',
        'analysis/fit_position_bias.py vit_relpos_base_patch16_224 weights.pth --layer 0 --untrained --out first',
        'analysis/fit_position_bias.py configs/gab/upernet_swin_small_ade20k.py iter_160000.pth --out fits',
    )
    help = (
        'config with the backbone GABViT or GABSwin, or a timm model with relative positions, such as '
        'vit_relpos_small_patch16_224'
    )
    parser.add_argument('model', metavar='MODEL', help=help)
    help = f"weights of the model or its backbone: {CHECKPOINT_KINDS}; '{PRETRAINED}' takes timm's own"
    parser.add_argument('checkpoint', metavar='CHECKPOINT', help=help)
    parser.add_out(', '.join(FILES))
    help = 'layers, from 0; negative numbers count from the end (default: all)'
    parser.add_argument('--layer', type=int, nargs='+', metavar='N', help=help)
    help = 'draw the bias of random initial weights, too, in slices.png'
    parser.add_argument('--untrained', action='store_true', help=help)
    help = 'GABViT: grid of patches to fit the bias on (default: 14 14, that of 224 pixels)'
    size = ('HEIGHT', 'WIDTH')
    parser.add_integer('--grid', minimum=3, nargs=2, metavar=size, default=VIT_GRID, help=help)
    parser.add_shared('--trust-checkpoint')
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    report = Report(args.out, *FILES)
    tables = read_tables(args.model, args.checkpoint, tuple(args.grid), args.layer)
    initial = read_tables(args.model, None, tuple(args.grid), args.layer) if args.untrained else {}
    maps = {layer: {CENTRE: centre_map(table), OFFSETS: table} for layer, table in tables.items()}

    rows = []
    for layer, of_layer in track(maps.items(), description='fitting'):
        for name, bias in of_layer.items():
            rows.append(dict(layer=layer, map=name, **fit_gaussian(bias, from_minimum=True)))
    report.write_csv('table.csv', rows)
    report.write_json('table.json', rows)
    report.write_figure('centre_patch.png', draw_fits(rows, maps, CENTRE))
    report.write_figure('offsets.png', draw_fits(rows, maps, OFFSETS))
    slices = tables | {f'{layer}, untrained': table for layer, table in initial.items()}
    report.write_figure('slices.png', draw_slices(slices, columns=min(4, len(tables))))
    columns = dict(r_squared='R^2', sigma_x='sigma x', sigma_y='sigma y', amplitude='amplitude')
    cells = ((row['layer'], row['map'], *(f'{row[column]:.3f}' for column in columns)) for row in rows)
    print_table('Gaussian fits, lengths in patches', ('layer', 'map', *columns.values()), cells)
    print(report)


def read_tables(
    model: str, checkpoint: str | None, grid: tuple[int, int], layers: list[int] | None = None
) -> dict[str, np.ndarray]:
    """The bias of some layers at each offset, averaged over heads, by the layer's name: float64 (2 H - 1, 2 W - 1).

    Args:
        model: Config, or name of one of timm's models.
        checkpoint: Its weights; None for random ones, the same in every run.
        grid: For GABViT, the grid of patches.
        layers: Numbers of the layers, None for all.
    """
    if Path(find_config(model)).suffix in ('.py', '.yaml', '.yml', '.json'):
        backbone, _ = build_backbone(read_config(model), checkpoint)
        if not isinstance(backbone, (GABViT, GABSwin)):
            raise InputError(f'{model} has the backbone {type(backbone).__name__}: expected GABViT or GABSwin')
    elif timm.is_model(model) and 'relpos' in model:
        backbone = build_backbone(timm_config(model), checkpoint)[0].model
    else:
        raise InputError(f"{model} is neither a config file nor one of timm's models with relative positions")
    with torch.no_grad():
        tables = {name: table.double().mean(0).numpy() for name, table in tables_of(backbone, grid)}
    if not tables:
        raise InputError(f'{model} has no relative position bias')
    return dict(numbered(list(tables.items()), layer, '--layer') for layer in layers) if layers else tables


def tables_of(backbone: nn.Module, grid: tuple[int, int]) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and bias of each layer, (heads, 2 H - 1, 2 W - 1)."""
    if isinstance(backbone, GABViT):
        for index, block in enumerate(backbone.blocks):
            yield f'block {index}', block.attn.rel_pos.table(grid)
    elif isinstance(backbone, GABSwin):
        for stage, blocks in enumerate(stage.blocks for stage in backbone.stages):
            for index, block in enumerate(blocks):
                yield f'stage {stage} block {index}', block.attn.w_msa.table()
    else:
        for name, module in backbone.named_modules():
            if isinstance(module, (RelPosMlp, RelPosBias)):
                label = name.replace('blocks.', 'block ').removesuffix('.attn.rel_pos')
                yield label, table_of_timm(module)


def table_of_timm(module: RelPosMlp | RelPosBias) -> torch.Tensor:
    """Bias of a timm layer with one value for each offset, not each pair of patches: (heads, 2 H - 1, 2 W - 1)."""
    height, width = module.window_size
    bias = module.get_bias()[0, :, module.prefix_tokens :, module.prefix_tokens :]  # a class token has no offset
    index = gen_relative_position_index((height, width))
    table = bias.new_empty(len(bias), (2 * height - 1) * (2 * width - 1))
    table[:, index.flatten()] = bias.flatten(1)
    return table.unflatten(1, (2 * height - 1, 2 * width - 1))


def grid_of(table: np.ndarray) -> tuple[int, int]:
    """The grid of patches whose offsets a table has."""
    return tuple((length + 1) // 2 for length in table.shape)


def slices_of(table: np.ndarray, queries: torch.Tensor) -> np.ndarray:
    """The bias of some patches towards all: (2 H - 1, 2 W - 1) and indices (queries,) to (queries, H, W)."""
    grid = grid_of(table)
    return bias_of_queries(torch.from_numpy(table), grid, queries).unflatten(-1, grid).numpy()


def centre_map(table: np.ndarray) -> np.ndarray:
    """The bias of the patch in the middle towards all."""
    grid = grid_of(table)
    row, column = middle_patch(grid)
    return slices_of(table, torch.tensor([row * grid[1] + column]))[0]


def middle_patch(grid: tuple[int, int]) -> tuple[int, int]:
    """Of an even number of patches the one before the middle: (6, 6), the patch 90, of 14 x 14."""
    return tuple((length - 1) // 2 for length in grid)


def draw_fits(rows: list[dict], maps: dict[str, dict[str, np.ndarray]], name: str) -> Figure:
    """Draw the map of each layer, in patches, with the fitted Gaussian at one and two sigma."""
    figure, axes = panels(len(maps), 6, 2.6, 2.6)
    for axis, (layer, of_layer) in zip(axes, maps.items()):
        (row,) = (row for row in rows if (row['layer'], row['map']) == (layer, name))
        height, width = of_layer[name].shape
        # The table's coordinates are offsets; those of the grid are rows and columns.
        left, top = ((width - 1) / 2, (height - 1) / 2) if name == OFFSETS else (0, 0)
        extent = (-left - 0.5, width - left - 0.5, height - top - 0.5, -top - 0.5)
        image = axis.imshow(of_layer[name], cmap='viridis', extent=extent)
        figure.colorbar(image, ax=axis, shrink=0.7).ax.tick_params(labelsize=6)
        if name == CENTRE:
            row_of_middle, column = middle_patch((height, width))
            corner = column - 0.5, row_of_middle - 0.5
            axis.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor='red', linewidth=1))
        draw_ellipses(axis, ((width - 1) / 2 - left, (height - 1) / 2 - top), row)
        axis.set(xlim=extent[:2], ylim=extent[2:])
        fit = f'R^2 {row["r_squared"]:.3f}, sigma {row["sigma_x"]:.1f} x {row["sigma_y"]:.1f}'
        axis.set_title(f'{layer}\n{fit}', fontsize=8)
    what = 'offset from key to query' if name == OFFSETS else 'key'
    figure.supxlabel(f'{what}, in patches; circles: fitted Gaussian at one and two sigma', fontsize=8)
    return figure


def draw_slices(tables: dict[str, np.ndarray], columns: int = 4) -> Figure:
    """Draw, for each layer, the map of every patch at the patch's place."""
    figure, axes = panels(len(tables), columns, 3.8, 3.8)
    for axis, (layer, table) in zip(axes, tables.items()):
        height, width = grid_of(table)
        rows, columns = (range(0, length, -(-length // MAX_SLICES)) for length in (height, width))
        queries = torch.tensor([row * width + column for row in rows for column in columns])
        # A line of NaN between two slices stays white.
        slices = np.pad(slices_of(table, queries), ((0, 0), (0, 1), (0, 1)), constant_values=np.nan)
        mosaic = slices.reshape(len(rows), len(columns), height + 1, width + 1).swapaxes(1, 2)
        image = axis.imshow(mosaic.reshape(len(rows) * (height + 1), -1)[:-1, :-1], cmap='viridis')
        figure.colorbar(image, ax=axis, shrink=0.7).ax.tick_params(labelsize=6)
        axis.set_xticks([(index + 0.5) * (width + 1) for index in range(len(columns))][::3], columns[::3])
        axis.set_yticks([(index + 0.5) * (height + 1) for index in range(len(rows))][::3], rows[::3])
        axis.set_title(layer, fontsize=8)
    figure.supxlabel('at the place of each patch (query) its bias towards all patches', fontsize=8)
    return figure


if __name__ == '__main__':
    main()
