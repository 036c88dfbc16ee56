#!/usr/bin/env python
"""Fit the position bias that each layer of a model has learned with a two-dimensional Gaussian.

After table 1 and figures 5 and 6 of Kim et al., BMVC 2023 (Gaussian attention bias), with lmfit as there: how well
a Gaussian describes a layer (R^2) and how wide it is (sigma, in patches). A layer's bias is what it adds to the
attention logits at each offset between query and key, averaged over its heads: the learned table or MLP of relative
positions, and in GABViT and GABSwin the learned Gaussian with it.
"""

import argparse
import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
import numpy as np
import timm
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from timm.layers import RelPosBias, RelPosMlp
from timm.layers.pos_embed_rel import gen_relative_position_index
from torch import nn

from bioattn_mm.analysis.gaussian_fit import FIT_COLUMNS, fit_gaussian
from bioattn_mm.checkpoints import check_fit, load_backbone, read_state_dict
from bioattn_mm.cli.command_line import add_trust_checkpoint, read_config, run_tool
from bioattn_mm.errors import InputError
from bioattn_mm.models import GABSwin, GABViT

BACKBONES = {'GABViT': GABViT, 'GABSwin': GABSwin}
COLUMNS = ('layer', *FIT_COLUMNS)
FILES = ('table.csv', 'table.json', 'bias_maps.png', 'fits.png')
# Offsets that a bias is fitted on, in patches: those of the pre-training at 224 pixels.
VIT_GRID = (14, 14)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='Examples:\n'
        '  python tools/analysis/fit_position_bias.py vit_relpos_base_patch16_224 weights.pth --out fits\n'
        '  python tools/analysis/fit_position_bias.py configs/gab/upernet_swin_small_ade20k.py iter_160000.pth '
        '--out fits',
    )
    parser.add_argument(
        'model',
        help="config file with a backbone bioattn_mm.GABViT or bioattn_mm.GABSwin, or the name of one of timm's "
        'models with relative positions, such as vit_relpos_small_patch16_224',
    )
    parser.add_argument('checkpoint', help='checkpoint file of the whole model, of its backbone, or of ImageNet')
    parser.add_argument('--out', required=True, metavar='DIR', help=f'folder for {", ".join(FILES)}')
    parser.add_argument(
        '--grid',
        type=int,
        nargs=2,
        metavar=('HEIGHT', 'WIDTH'),
        default=VIT_GRID,
        help='GABViT: grid in patches on whose offsets the bias is fitted (default: 14 14, that of 224 pixels); '
        "GABSwin has its window's, timm's models their input size's",
    )
    add_trust_checkpoint(parser)
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    if min(args.grid) < 3:
        raise InputError(f'--grid must be at least 3 patches each way, got {args.grid[0]} {args.grid[1]}')
    out = Path(args.out)
    existing = [name for name in FILES if (out / name).exists()]
    if existing:
        raise InputError(f'{out / existing[0]} is there already: name another folder for --out')
    maps = read_maps(args.model, args.checkpoint, tuple(args.grid))
    out.mkdir(parents=True, exist_ok=True)

    rows, fits = [], {}
    for layer, bias in track(maps.items(), description='fitting'):
        values, fits[layer] = fit_gaussian(bias)
        rows.append(dict(layer=layer, **values))
    write_tables(out, rows)
    limits = {layer: (bias.min(), bias.max()) for layer, bias in maps.items()}
    draw(out / 'bias_maps.png', maps, limits, {layer: layer for layer in maps})
    titles = {row['layer']: f'{row["layer"]}\n{describe(row)}' for row in rows}
    draw(out / 'fits.png', fits, limits, titles)
    print_table(rows)
    print('  '.join(str(out / name) for name in FILES))


def read_maps(model: str, checkpoint: str, grid: tuple[int, int]) -> dict[str, np.ndarray]:
    """By the layer's name, its bias at each offset, averaged over heads: float64 (2 H - 1, 2 W - 1)."""
    is_config = Path(model).suffix in ('.py', '.yaml', '.yml', '.json')
    backbone = load_from_config(model, checkpoint) if is_config else load_from_timm(model, checkpoint)
    with torch.no_grad():
        maps = {name: table.double().mean(0).numpy() for name, table in tables_of(backbone.eval(), grid)}
    if not maps:
        raise InputError(f'{model} has no relative position bias')
    return maps


def load_from_config(path: str, checkpoint: str) -> nn.Module:
    settings = dict(read_config(path).model.get('backbone', {}))
    name = str(settings.pop('type', None)).removeprefix('bioattn_mm.')
    if name not in BACKBONES:
        raise InputError(f'{path} has the backbone {name}: expected one of {", ".join(BACKBONES)}')
    settings.pop('init_cfg', None)
    backbone = BACKBONES[name](**settings)
    load_backbone(backbone, checkpoint)
    return backbone


def load_from_timm(name: str, checkpoint: str) -> nn.Module:
    if not timm.is_model(name) or 'relpos' not in name:
        raise InputError(f"{name} is neither a config file nor one of timm's models with relative positions")
    state_dict = read_state_dict(checkpoint)
    model = timm.create_model(name)
    check_fit(checkpoint, state_dict, model.state_dict())
    model.load_state_dict(state_dict)
    return model


def tables_of(backbone: nn.Module, grid: tuple[int, int]) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and bias, (heads, 2 H - 1, 2 W - 1), of each layer."""
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
    """What timm adds for all pairs of patches, back to one value for each offset: (heads, 2 H - 1, 2 W - 1)."""
    height, width = module.window_size
    bias = module.get_bias()[0, :, module.prefix_tokens :, module.prefix_tokens :]  # a class token has no offset
    index = gen_relative_position_index((height, width))
    table = bias.new_empty(len(bias), (2 * height - 1) * (2 * width - 1))
    table[:, index.flatten()] = bias.flatten(1)
    return table.unflatten(1, (2 * height - 1, 2 * width - 1))


def write_tables(out: Path, rows: list[dict]) -> None:
    with (out / 'table.csv').open('w', newline='') as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    # JSON has no NaN.
    rows = [{key: None if value != value else value for key, value in row.items()} for row in rows]
    (out / 'table.json').write_text(json.dumps(rows, indent=1) + '\n')


def print_table(rows: list[dict]) -> None:
    titles = (column.replace('r_squared', 'R^2').replace('_', ' ') for column in FIT_COLUMNS)
    table = Table('layer', *titles, title='Gaussian fits, lengths in patches')
    for row in rows:
        table.add_row(row['layer'], *(f'{row[column]:.3f}' for column in FIT_COLUMNS))
    Console().print(table)


def describe(row: dict) -> str:
    return f'R^2 {row["r_squared"]:.3f}, sigma {row["sigma_x"]:.1f} {row["sigma_y"]:.1f}'


def draw(path: Path, maps: dict[str, np.ndarray], limits: dict[str, tuple], titles: dict[str, str]) -> None:
    """Draw one map for each layer, six to a row, the offsets (query - key) in patches on the axes."""
    columns = min(6, len(maps))
    lines = math.ceil(len(maps) / columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(2.6 * columns, 2.6 * lines), squeeze=False, layout='constrained'
    )
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
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == '__main__':
    main()
