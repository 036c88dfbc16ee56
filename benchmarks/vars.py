#!/usr/bin/env python
"""The five attentions of VARS against the number of tokens: time and peak memory of one layer, in one process."""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
import torch
from measure import Measurement, make_parser, measure_layer, print_header, print_row, print_title
from torch import nn

from bioattn_mm.models import VARS
from bioattn_mm.models.backbones.vars import ATTENTIONS

NAMES = dict(vars_s='VARS-S', vars_d='VARS-D', vars_sd='VARS-SD', performer='Performer', softmax='softmax')
PASSES = ('forward', 'forward + backward')
Results = dict[tuple[str, str, int], Measurement]  # by attention, pass and tokens a side


def main() -> None:
    parser = make_parser(__doc__, repeats=5)
    parser.add_argument('--arch', default='rvt-tiny', help='host whose first layer is measured (default: rvt-tiny)')
    parser.add_argument(
        '--tokens', type=int, nargs='+', default=[14, 32, 48, 64, 96, 128], help='tokens a side, of 16 pixels'
    )
    parser.add_argument('--plot', default='vars.png', metavar='FILE', help='where to draw (default: vars.png)')
    args = parser.parse_args()

    layers = {name: first_attention(args.arch, name).to(args.device) for name in ATTENTIONS}
    results: Results = {}
    print_title(f'A layer of {args.arch}, batch 1', args)
    print_header('tokens', 'pass', *(NAMES[name] for name in ATTENTIONS))
    for tokens in args.tokens:
        for pass_name in PASSES:
            for name, layer in layers.items():
                results[name, pass_name, tokens] = measure_attention(layer, pass_name, tokens, args)
            cells = (cell(results, name, pass_name, tokens) for name in ATTENTIONS)
            print_row(f'{tokens} x {tokens}', pass_name, *cells)
    draw(results, args.tokens, Path(args.plot))
    print(f'\n{args.plot}')


def first_attention(arch: str, attention: str) -> nn.Module:
    return VARS(arch, attention, out_indices=(0,)).blocks[0].attn


def measure_attention(layer: nn.Module, pass_name: str, tokens: int, args: argparse.Namespace) -> Measurement:
    """The layer with tokens x tokens tokens."""
    training = pass_name == PASSES[1]
    x = torch.randn(1, tokens, tokens, layer.proj.in_features, device=args.device, requires_grad=training)
    return measure_layer(layer, x, training, args)


def cell(results: Results, name: str, pass_name: str, tokens: int) -> str:
    """Time and memory of an attention, and how many times faster than softmax it is."""
    own, softmax = results[name, pass_name, tokens], results['softmax', pass_name, tokens]
    return str(own) if name == 'softmax' else f'{own}, {softmax.seconds / own.seconds:.2g}x'


def draw(results: Results, tokens: list[int], path: Path) -> None:
    """Plot time and memory against the number of tokens, on logarithmic axes."""
    figure, axes = plt.subplots(2, len(PASSES), figsize=(10, 7), sharex=True, layout='constrained')
    number_of_tokens = [side**2 for side in tokens]
    for column, pass_name in enumerate(PASSES):
        for row, (unit, of) in enumerate(
            (('milliseconds', lambda m: 1000 * m.seconds), ('peak memory, MiB', lambda m: m.mebibytes))
        ):
            axis = axes[row, column]
            for name in ATTENTIONS:
                values = [of(results[name, pass_name, side]) for side in tokens]
                axis.plot(number_of_tokens, values, marker='o', label=NAMES[name])
            axis.set(xscale='log', yscale='log', ylabel=unit)
            axis.grid(alpha=0.3)
        axes[0, column].set_title(pass_name)
        axes[1, column].set(xlabel='tokens N', xticks=number_of_tokens, xticklabels=[f'{side}²' for side in tokens])
        axes[1, column].minorticks_off()
    axes[0, 0].legend()
    figure.savefig(path, dpi=150)


if __name__ == '__main__':
    main()
