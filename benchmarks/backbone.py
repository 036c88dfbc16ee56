#!/usr/bin/env python
"""TransNeXt against the dense formulas: forward and forward + backward, time and peak memory, in one process."""

import argparse

import torch
from dense_reference import dense_formulas, forget_coordinates
from measure import Measurement, gains, make_parser, measure, print_header, print_row, print_title, training_step

from bioattn_mm.layers import LogCPB
from bioattn_mm.models import TransNeXt

# Larger images are trained with activation checkpointing, ours and the dense formulas, to fit into common memory.
MAX_SIZE_WITHOUT_CP = 512
# For larger images, sorting the coordinates of all pairs takes minutes and 20 GB.
MAX_SIZE_TO_SORT = 512


def main() -> None:
    parser = make_parser(__doc__, repeats=3)
    parser.add_argument('--arch', default='tiny', help='variant (default: tiny)')
    parser.add_argument('--sizes', type=int, nargs='+', default=[224, 512, 1024], help='square inputs, in pixels')
    parser.add_argument('--no-training', action='store_true', help='measure the forward pass only')
    parser.add_argument('--all', action='store_true', help='sort the coordinates of all pairs at every size')
    args = parser.parse_args()

    print_title(f'TransNeXt-{args.arch}, batch 1', args)
    print_header('input', 'pass', 'position bias', 'dense formulas', 'bioattn_mm', 'faster', 'less memory')
    for size in args.sizes:
        image = torch.randn(1, 3, size, size, device=args.device)
        forward(args, image, size)
        if not args.no_training:
            training(args, image, size)
    print()
    for size in args.sizes:
        first_time_share(args, size)


def forward(args: argparse.Namespace, image: torch.Tensor, size: int) -> None:
    """The forward pass in eval mode: at a new size, at a size seen before, and with an interpolated bias."""

    def run(backbone: TransNeXt, new_size: bool, repeats: int = args.repeats) -> Measurement:
        @torch.no_grad()
        def once() -> None:
            if new_size:
                forget_coordinates()
                backbone.eval()  # empties the cache of position biases
            backbone(image)

        return measure(once, args.device, repeats)

    extrapolate, interpolate = (
        TransNeXt(args.arch, bias_mode=mode, img_size=512).to(args.device).eval()
        for mode in ('extrapolate', 'interpolate')
    )
    run(extrapolate, False)  # warm-up
    new, seen, resized = run(extrapolate, True), run(extrapolate, False), run(interpolate, False)
    with dense_formulas():
        if size <= MAX_SIZE_TO_SORT or args.all:
            row(size, 'forward', 'extrapolated, new size', run(extrapolate, True, 1), new)
        dense_resized = run(interpolate, False)
    row(size, 'forward', 'extrapolated, new size, against dense interpolated', dense_resized, new)
    row(size, 'forward', 'extrapolated, size seen before, against dense interpolated', dense_resized, seen)
    row(size, 'forward', 'interpolated from 512', dense_resized, resized)


def first_time_share(args: argparse.Namespace, size: int) -> None:
    """What a new size costs more than a size seen before: the tables of all position biases."""
    backbone = TransNeXt(args.arch).to(args.device).eval()
    image = torch.randn(1, 3, size, size, device=args.device)
    with torch.no_grad():
        seen = measure(lambda: backbone(image), args.device, args.repeats)
        layers = [module for module in backbone.modules() if isinstance(module, LogCPB)]
        grids = [next(iter(layer._tables._results)) for layer in layers]
        tables = measure(
            lambda: [layer._table(*grid) for layer, grid in zip(layers, grids, strict=True)],
            args.device,
            args.repeats,
        )
    milliseconds, share = 1000 * tables.seconds, 100 * tables.seconds / seen.seconds
    print(f'{size} x {size}: position bias at a new size {milliseconds:.1f} ms, {share:.1f} % of the forward pass')


def training(args: argparse.Namespace, image: torch.Tensor, size: int) -> None:
    """Forward and backward, in train mode."""
    with_cp = size > MAX_SIZE_WITHOUT_CP
    repeats = 1 if with_cp else args.repeats

    def run(bias_mode: str) -> Measurement:
        backbone = TransNeXt(args.arch, bias_mode=bias_mode, img_size=512, with_cp=with_cp).to(args.device)
        return measure(training_step(backbone, image), args.device, repeats)

    with dense_formulas():
        dense_resized = run('interpolate')
    name = 'forward + backward' + (', with_cp' if with_cp else '')
    row(size, name, 'extrapolated, against dense interpolated', dense_resized, run('extrapolate'))
    row(size, name, 'interpolated from 512', dense_resized, run('interpolate'))


def row(size: int, name: str, bias: str, dense: Measurement, ours: Measurement) -> None:
    print_row(f'{size} x {size}', name, bias, dense, ours, *gains(dense, ours))


if __name__ == '__main__':
    main()
