#!/usr/bin/env python
"""GPSA beside the dense formula (ConViT, eq. 7): forward and forward + backward, time and peak memory."""

import argparse

import torch
from measure import Measurement, measure
from torch import Tensor

from bioattn_mm.layers import GPSA
from bioattn_mm.models import ConViT

GRIDS = ((14, 14), (24, 24), (32, 32), (64, 64), (50, 84))


class DenseGPSA(GPSA):
    """The same layer with both terms as weights of every pair of tokens, as eq. 7 is written."""

    relative: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        query, key = self._query_key(x)
        content = (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(-1)
        if self.relative is None:  # kept from call to call, as the released code does
            position = torch.cartesian_prod(*(torch.arange(length, device=x.device) for length in x.shape[1:3]))
            dy, dx = (position - position[:, None]).to(x.dtype).unbind(-1)
            self.relative = torch.stack((dx, dy, dx**2 + dy**2), dim=-1)
        position = self.pos_proj(self.relative).permute(2, 0, 1).softmax(-1)
        gate = self.gating_param.sigmoid()[:, None, None]
        weights = (1 - gate) * content + gate * position
        weights = weights / weights.sum(-1, keepdim=True)
        return self.proj((weights @ self._value(x)).transpose(1, 2).reshape(x.shape))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--arch', default='tiny', choices=ConViT.arch_settings, help='variant (default: tiny)')
    parser.add_argument(
        '--grids', nargs='+', type=grid, default=GRIDS, metavar='HxW', help='token grids, such as 50x84'
    )
    parser.add_argument('--device', default='cpu', choices=['cpu', 'cuda'])
    parser.add_argument('--repeats', type=int, default=5, help='runs of each, the fastest counts (default: 5)')
    args = parser.parse_args()

    print(f'One GPSA layer of ConViT-{args.arch}, batch 1, float32, {args.device}, ', end='')
    print(f'{torch.get_num_threads()} threads, fastest of {args.repeats}\n')
    print('| tokens | pass | dense formula | bioattn_mm | faster | less memory |')
    print('| --- | --- | --- | --- | --- | --- |')
    embed_dims, _, num_heads = ConViT.arch_settings[args.arch].values()
    for height, width in args.grids:
        dense, factorised = (cls(embed_dims, num_heads).to(args.device) for cls in (DenseGPSA, GPSA))
        factorised.load_state_dict(dense.state_dict())
        x = torch.randn(1, height, width, embed_dims, device=args.device)
        for name, run in (('forward', forward), ('forward + backward', training)):
            row(f'{height} x {width} | {name}', *(run(layer, x, args) for layer in (dense, factorised)))


def grid(text: str) -> tuple[int, int]:
    height, width = text.split('x')
    return int(height), int(width)


@torch.no_grad()
def forward(layer: GPSA, x: Tensor, args: argparse.Namespace) -> Measurement:
    layer.eval()(x)  # warm-up
    return measure(lambda: layer(x), args.device, args.repeats)


def training(layer: GPSA, x: Tensor, args: argparse.Namespace) -> Measurement:
    def once() -> None:
        layer.zero_grad()
        layer(x).square().mean().backward()

    layer.train()
    once()  # warm-up
    return measure(once, args.device, args.repeats)


def row(name: str, dense: Measurement, ours: Measurement) -> None:
    cells = [f'{1000 * m.seconds:.1f} ms, {m.mebibytes:.1f} MiB' for m in (dense, ours)]
    # Below a MiB resident memory says nothing.
    less = f'{dense.mebibytes / ours.mebibytes:.1f}x' if ours.mebibytes >= 1 else ''
    print(f'| {name} | {cells[0]} | {cells[1]} | {dense.seconds / ours.seconds:.1f}x | {less} |', flush=True)


if __name__ == '__main__':
    main()
