#!/usr/bin/env python
"""Fit the position bias that each layer of a model has learned with a two-dimensional Gaussian.

After table 1 and figures 5 and 6 of Kim et al., BMVC 2023 (Gaussian attention bias), with lmfit as there: how well
a Gaussian describes a layer (R^2) and how wide it is (sigma, in patches). The bias is what a layer adds to the
attention logits at each offset between query and key, averaged over heads: the learned table or MLP of relative
positions, and in GABViT and GABSwin also the learned Gaussian.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import bioattn_mm.cli.threads  # noqa: F401

import numpy as np
import timm
import torch
from matplotlib.figure import Figure
from rich.progress import track
from timm.layers import RelPosBias, RelPosMlp
from timm.layers.pos_embed_rel import gen_relative_position_index
from torch import nn

from bioattn_mm.analysis.gaussian_fit import FIT_COLUMNS, fit_gaussian
from bioattn_mm.analysis.models import build_backbone
from bioattn_mm.checkpoints import check_fit, read_state_dict
from bioattn_mm.cli.command_line import CHECKPOINT_KINDS, ToolParser, run_tool
from bioattn_mm.cli.config import read_config
from bioattn_mm.cli.reports import Report, print_table
from bioattn_mm.errors import InputError
from bioattn_mm.models import GABSwin, GABViT

BACKBONES = (GABViT, GABSwin)
FILES = ('table.csv', 'table.json', 'bias_maps.png', 'fits.png')
# Default grid for GABViT, in patches: that of the pre-training at 224 pixels.
VIT_GRID = (14, 14)


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'analysis/fit_position_bias.py vit_relpos_base_patch16_224 weights.pth --out fits',
        'analysis/fit_position_bias.py configs/gab/upernet_swin_small_ade20k.py iter_160000.pth --out fits',
    )
    parser.add_argument(
        'model',
        help="config file with a backbone bioattn_mm.GABViT or bioattn_mm.GABSwin, or the name of one of timm's "
        'models with relative positions, such as vit_relpos_small_patch16_224',
    )
    parser.add_argument(
        'checkpoint', help=f'checkpoint of the whole model, of its backbone, or of ImageNet: {CHECKPOINT_KINDS}'
    )
    parser.add_out(', '.join(FILES))
    parser.add_integer(
        '--grid',
        minimum=3,
        nargs=2,
        metavar=('HEIGHT', 'WIDTH'),
        default=VIT_GRID,
        help='for GABViT: grid of patches whose offsets the bias is fitted at (default: 14 14, that of 224 pixels); '
        "GABSwin has that of its window, timm's models that of their input size",
    )
    parser.add_trust_checkpoint()
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    report = Report(args.out, *FILES)
    maps = read_maps(args.model, args.checkpoint, tuple(args.grid))

    rows, fits = [], {}
    for layer, bias in track(maps.items(), description='fitting'):
        values, fits[layer] = fit_gaussian(bias)
        rows.append(dict(layer=layer, **values))
    limits = {layer: (bias.min(), bias.max()) for layer, bias in maps.items()}
    titles = {row['layer']: f'{row["layer"]}\n{describe(row)}' for row in rows}
    report.write_csv('table.csv', rows)
    report.write_json('table.json', rows)
    report.write_figure('bias_maps.png', draw(maps, limits, {layer: layer for layer in maps}))
    report.write_figure('fits.png', draw(fits, limits, titles))
    names = (column.replace('r_squared', 'R^2').replace('_', ' ') for column in FIT_COLUMNS)
    cells = ((row['layer'], *(f'{row[column]:.3f}' for column in FIT_COLUMNS)) for row in rows)
    print_table('Gaussian fits, lengths in patches', ('layer', *names), cells)
    print(report)


def read_maps(model: str, checkpoint: str, grid: tuple[int, int]) -> dict[str, np.ndarray]:
    """The bias of each layer at each offset, averaged over heads, by the layer's name: float64 (2 H - 1, 2 W - 1)."""
    if Path(model).suffix in ('.py', '.yaml', '.yml', '.json'):
        backbone, _ = build_backbone(read_config(model), checkpoint, classes=BACKBONES)
    else:
        backbone = load_from_timm(model, checkpoint)
    with torch.no_grad():
        maps = {name: table.double().mean(0).numpy() for name, table in tables_of(backbone, grid)}
    if not maps:
        raise InputError(f'{model} has no relative position bias')
    return maps


def load_from_timm(name: str, checkpoint: str) -> nn.Module:
    if not timm.is_model(name) or 'relpos' not in name:
        raise InputError(f"{name} is neither a config file nor one of timm's models with relative positions")
    state_dict = read_state_dict(checkpoint)
    model = timm.create_model(name)
    check_fit(checkpoint, state_dict, model.state_dict())
    model.load_state_dict(state_dict)
    return model.eval()


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


def describe(row: dict) -> str:
    return f'R^2 {row["r_squared"]:.3f}, sigma {row["sigma_x"]:.1f} {row["sigma_y"]:.1f}'


def draw(maps: dict[str, np.ndarray], limits: dict[str, tuple], titles: dict[str, str]) -> Figure:
    """Draw the map of each layer, six to a line, over the offset (query - key) in patches."""
    columns = min(6, len(maps))
    lines = math.ceil(len(maps) / columns)
    figure = Figure(figsize=(2.6 * columns, 2.6 * lines), layout='constrained')
    axes = figure.subplots(lines, columns, squeeze=False)
    for axis in axes.flat[len(maps) :]:
        axis.axis('off')
    for axis, (layer, values) in zip(axes.flat, maps.items()):
        low, high = limits[layer]
        half_height, half_width = (length / 2 for length in values.shape)
        extent = (-half_width, half_width, half_height, -half_height)
        image = axis.imshow(values, vmin=low, vmax=high, cmap='viridis', extent=extent)
        axis.set_title(titles[layer], fontsize=8)
        axis.tick_params(labelsize=6)
        figure.colorbar(image, ax=axis, shrink=0.7).ax.tick_params(labelsize=6)
    return figure


if __name__ == '__main__':
    main()
