#!/usr/bin/env python
"""Systems against their formulas as they are written (`formulas.py`): time and peak memory, in one process.

TransNeXt-Tiny and PerViT-Tiny are whole backbones; of ConViT-Tiny, GABViT-Small and TransNeXt-Tiny's last stage it is
one layer, and one of DINO's encoder. The first layer of RVT-Ti with VARS or Performer is measured beside that with
softmax attention. At a new size what depends on the size alone is computed, which is kept for the next image. Beyond
some size a formula takes minutes and tens of GB, and is not run.
"""

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import NamedTuple

import torch
import torch.nn.functional as F
from formulas import unique_coordinates, written_out
from measure import gains, make_parser, measure_with, print_header, print_row, print_title, sides_of, training_step
from torch import Tensor, nn

from bioattn_mm.systems.convit import GPSA, ConViT
from bioattn_mm.systems.gab import GABViT, GaussianRelPosAttention
from bioattn_mm.systems.pervit import PerViT
from bioattn_mm.systems.transnext import LengthScaledAttention, LogCPB, TransNeXt
from bioattn_mm.systems.vars import VARS

# isort: split
# mmcv.ops comes after bioattn_mm, without which its import fails where its operators are not compiled.
from mmcv.ops import MultiScaleDeformableAttention


def convit_layer() -> nn.Module:
    embed_dims, _, num_heads = ConViT.arch_settings['tiny'].values()
    return GPSA(embed_dims, num_heads)


def gab_layer() -> nn.Module:
    embed_dims, _, num_heads = GABViT.arch_settings['small'].values()
    return GaussianRelPosAttention(embed_dims, num_heads, sigma=5.0)


def transnext_layer(mode: str) -> nn.Module:
    embed_dims, num_heads = (TransNeXt.arch_settings['tiny'][name][3] for name in ('embed_dims', 'num_heads'))
    train_grid = (16, 16)  # the grid of 512 x 512 pixels
    bias = LogCPB(num_heads, (7, 7), mode, train_grid, train_grid)
    return LengthScaledAttention(embed_dims, num_heads, bias)


def vars_layer(attention: str) -> nn.Module:
    return VARS('rvt-tiny', attention, out_indices=(0,)).blocks[0].attn


class DeformableLayer(MultiScaleDeformableAttention):
    """Self-attention of DINO's encoder, of four levels: tokens (1, H, W, 256) of stride 8, and their averages."""

    def __init__(self) -> None:
        super().__init__(num_heads=8, num_levels=4, num_points=4, dropout=0, batch_first=True)
        self.proj = self.output_proj

    def forward(self, x: Tensor) -> Tensor:
        levels = [x.permute(0, 3, 1, 2)]
        for _ in range(3):
            levels.append(F.avg_pool2d(levels[-1], 2, ceil_mode=True))
        shapes = torch.tensor([level.shape[2:] for level in levels], device=x.device)
        tokens = torch.cat([level.flatten(2) for level in levels], 2).transpose(1, 2)
        centres = [
            torch.stack(torch.meshgrid(*((torch.arange(n) + 0.5) / n for n in shape), indexing='ij')[::-1], -1)
            for shape in shapes.tolist()
        ]
        centres = torch.cat([each.flatten(0, 1) for each in centres]).to(x)[None, :, None].expand(-1, -1, 4, -1)
        return super().forward(tokens, value=tokens, reference_points=centres, spatial_shapes=shapes)


class Case(NamedTuple):
    """What is measured: whole backbones have a stride of 0, and layers that of their tokens."""

    system: str
    name: str
    make: Callable[[], nn.Module]
    stride: int
    sizes: tuple[str, ...]
    largest: tuple[int, int]  # pixels of the longer side up to which the formula is run, forward and in training
    keeps: bool = False  # something for each size, which a new size computes
    other: Callable[[], nn.Module] | None = None  # another layer, which is measured instead of a formula


SQUARES, IMAGES = ('224', '512', '1024'), ('512', '800x1333', '1600x2666')
TOKENS = ('224', '512', '768', '1024', '1536', '2048')
CASES = (
    Case('transnext', 'extrapolated', partial(TransNeXt, 'tiny'), 0, SQUARES, (512, 512), keeps=True),
    Case(
        'transnext',
        'interpolated from 512',
        partial(TransNeXt, 'tiny', bias_mode='interpolate', img_size=512),
        0,
        SQUARES,
        (1024, 512),
    ),
    Case('convit', 'GPSA', convit_layer, 16, (*SQUARES, '800x1344'), (1344, 1344)),
    Case('pervit', '', partial(PerViT, 'tiny'), 0, SQUARES, (1024, 512), keeps=True),
    Case('deformable', "a layer of DINO's encoder", DeformableLayer, 8, IMAGES[:2], (1333, 1333)),
    Case('gab', 'a layer', gab_layer, 16, IMAGES, (1333, 1333)),
    Case('transnext-stage-4', 'extrapolated', partial(transnext_layer, 'extrapolate'), 32, IMAGES, (2666, 2666)),
    Case(
        'transnext-stage-4',
        'interpolated from 512',
        partial(transnext_layer, 'interpolate'),
        32,
        IMAGES,
        (2666, 1333),
    ),
)
CASES += tuple(
    Case('vars', name, partial(vars_layer, attention), 16, TOKENS, (2048, 2048), other=partial(vars_layer, 'softmax'))
    for attention, name in dict(vars_s='VARS-S', vars_d='VARS-D', vars_sd='VARS-SD', performer='Performer').items()
)


def main() -> None:
    systems = list(dict.fromkeys(case.system for case in CASES))
    parser = make_parser(__doc__, repeats=3, cpu_time=True)
    parser.add_argument('systems', nargs='+', choices=systems, metavar='SYSTEM', help=f'of {", ".join(systems)}')
    parser.add_argument('--sizes', nargs='+', help='pixels, N or HEIGHTxWIDTH (default: those of the README)')
    parser.add_argument('--no-training', action='store_true', help='measure the forward pass only')
    args = parser.parse_args()
    print_title('Batch 1, float32', args)
    print_header('system', '', 'input', 'pass', 'by its formula', 'bioattn_mm', 'faster', 'less memory')
    for case in CASES:
        for size in args.sizes or case.sizes if case.system in args.systems else ():
            sides = sides_of(size)
            module = case.make().to(args.device)
            other = case.other().to(args.device) if case.other else module
            shape = (1, 3, *sides)
            if case.stride:
                shape = (1, *(ceil(side / case.stride) for side in sides), module.proj.in_features)
            x = torch.randn(shape, device=args.device)
            for (name, run), run_other in zip(passes_of(module, x).items(), passes_of(other, x).values()):
                training = 'backward' in name
                if (training and args.no_training) or ('new' in name and not case.keeps):
                    continue
                module.train(training)
                other.train(training)
                run()
                ours, formula = measure_with(args, run), None
                if max(sides) <= case.largest[training]:
                    with written_out(case.system):
                        formula = measure_with(args, run_other)
                compared = gains(formula, ours) if formula else ('', '')
                print_row(case.system, case.name, size, name, formula or 'not run', ours, *compared)


def passes_of(module: nn.Module, x: torch.Tensor) -> dict[str, Callable[[], None]]:
    """What is run: each pass by its name."""

    @torch.no_grad()
    def forward() -> None:
        module(x)

    def at_new_size() -> None:
        unique_coordinates.cache_clear()
        module.eval()  # empties the caches of what depends on the size
        forward()

    return {'forward, new size': at_new_size, 'forward': forward, 'forward + backward': training_step(module, x)}


if __name__ == '__main__':
    main()
