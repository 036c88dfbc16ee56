"""What the processor does between the kernels of a model: Python calls, and the time of networks without arithmetic.

    python benchmarks/host.py [--systems transnext pervit] [--repeats 40]

A GPU waits for both. Calls are those that cProfile counts, of functions in Python and in C, in a forward pass, and in
a forward and a backward pass, of an image of 64 x 64 pixels; they are the same on every machine. Times are those of
networks as deep, but 24 to 48 channels wide, on one thread, the fastest of `--repeats`, in turns with the other
model: Swin-T beside TransNeXt-T and GABSwin-T, timm's ViT beside the plain backbones, all of twelve blocks.
"""

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from functools import partial

import timm
import torch
from measure import print_header, print_row, take_turns, time_text
from torch import nn

from bioattn_mm import VARS, ConViT, GABSwin, GABViT, PerViT, TransNeXt

IMAGE = torch.randn(1, 3, 64, 64)
SWIN = partial(timm.create_model, 'swin_tiny_patch4_window7_224', features_only=True, img_size=64)
VIT = partial(timm.create_model, 'vit_tiny_patch16_224', features_only=True, img_size=64)
OF_STAGES, OF_BLOCKS = dict(embed_dims=(24, 24, 48, 48)), dict(embed_dims=48, num_layers=12)
# A model, the same with few channels, and the other model in both sizes.
SYSTEMS: dict[str, tuple[Callable[[], nn.Module], ...]] = {
    'transnext': (
        partial(TransNeXt, 'tiny'),
        partial(TransNeXt, dict(OF_STAGES, num_heads=(1, 1, 2, 2), depths=(2, 2, 15, 2))),
    ),
    'gabswin': (
        partial(GABSwin, 'tiny'),
        partial(GABSwin, dict(embed_dims=24, num_heads=(1, 2, 4, 8), depths=(2, 2, 6, 2))),
    ),
    'convit': (partial(ConViT, 'tiny'), partial(ConViT, dict(OF_BLOCKS, num_heads=4))),
    'pervit': (
        partial(PerViT, 'tiny'),
        partial(PerViT, dict(OF_STAGES, depths=(2, 2, 6, 2), stem_channels=(8, 8, 16), num_heads=4)),
    ),
    'gabvit': (partial(GABViT, 'small'), partial(GABViT, dict(OF_BLOCKS, num_heads=2))),
    'vars': (
        partial(VARS, 'rvt-tiny', pretrain_size=64),
        partial(
            VARS,
            dict(block='rvt', embed_dims=[48, 48], depths=[10, 2], num_heads=[2, 2], feature_ratio=2),
            pretrain_size=64,
        ),
    ),
    'vars-d': (
        partial(VARS, 'deit-tiny', 'vars_d', pretrain_size=64),
        partial(
            VARS,
            dict(block='deit', embed_dims=[48], depths=[12], num_heads=[2], feature_ratio=1),
            'vars_d',
            pretrain_size=64,
        ),
    ),
}
OTHERS = {
    'transnext': (SWIN, partial(SWIN, embed_dim=24, num_heads=(1, 2, 4, 8))),
    'gabswin': (SWIN, partial(SWIN, embed_dim=24, num_heads=(1, 2, 4, 8))),
}
PASSES = [(trains, autocast) for autocast in (False, True) for trains in (False, True)]


class Pass:
    """A forward pass of a model, or one with its backward pass."""

    def __init__(self, build: Callable[[], nn.Module], trains: bool, autocast: bool) -> None:
        self.model, self.trains, self.autocast = build().train(trains), trains, autocast
        self.parameters = list(self.model.parameters())

    def run(self) -> None:
        with torch.set_grad_enabled(self.trains), torch.autocast('cpu', torch.bfloat16, enabled=self.autocast):
            outputs = self.model(IMAGE)
        if self.trains:
            sum(output.float().sum() for output in outputs).backward()
            for parameter in self.parameters:
                parameter.grad = None

    def calls(self) -> int:
        self.run()
        profile = cProfile.Profile()
        profile.runcall(self.run)
        return pstats.Stats(profile).total_calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--systems', nargs='+', choices=SYSTEMS, default=list(SYSTEMS), help='default: all')
    parser.add_argument('--repeats', type=int, default=40, help='of which the fastest counts (default: %(default)s)')
    args = parser.parse_args()
    torch.set_num_threads(1)
    print_header('model', 'pass', 'calls', 'of the other', '', 'narrow', 'the other', '')
    for name in args.systems:
        others = OTHERS.get(name, (VIT, partial(VIT, embed_dim=48, num_heads=2)))
        for trains, autocast in PASSES:
            whole, narrow = (
                [Pass(build, trains, autocast) for build in pair] for pair in zip(SYSTEMS[name], others, strict=True)
            )
            ours, other = (each.calls() for each in whole)
            runs = {each: each.run for each in narrow}
            times = list(take_turns(runs, 'cpu', args.repeats, time.perf_counter).values())
            title = f'{"bfloat16" if autocast else "float32"}, {"with backward" if trains else "forward"}'
            cells = (f'{ours / other:.2f}', *map(time_text, times), f'{times[0] / times[1]:.2f}')
            print_row(name, title, ours, other, *cells)


if __name__ == '__main__':
    main()
