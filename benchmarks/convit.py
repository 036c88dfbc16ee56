#!/usr/bin/env python
"""GPSA against the dense formula (ConViT, eq. 7): forward and forward + backward, time and peak memory."""

import torch
from measure import gains, make_parser, measure_layer, print_header, print_row, print_title
from torch import Tensor

from bioattn_mm.layers import GPSA
from bioattn_mm.models import ConViT

GRIDS = ((14, 14), (24, 24), (32, 32), (64, 64), (50, 84))


class DenseGPSA(GPSA):
    """The same layer as eq. 7 is written: with the weights of all pairs of tokens for both terms."""

    relative: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        query, key = self._query_key(x)
        content = (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(-1)
        if self.relative is None:  # computed once, as the released code does
            position = torch.cartesian_prod(*(torch.arange(length, device=x.device) for length in x.shape[1:3]))
            dy, dx = (position - position[:, None]).to(x.dtype).unbind(-1)
            self.relative = torch.stack((dx, dy, dx**2 + dy**2), dim=-1)
        position = self.pos_proj(self.relative).permute(2, 0, 1).softmax(-1)
        gate = self.gating_param.sigmoid()[:, None, None]
        weights = (1 - gate) * content + gate * position
        weights = weights / weights.sum(-1, keepdim=True)
        return self.proj((weights @ self._value(x)).transpose(1, 2).reshape(x.shape))


def main() -> None:
    parser = make_parser(__doc__, repeats=5)
    parser.add_argument('--arch', default='tiny', choices=ConViT.arch_settings, help='variant (default: tiny)')
    parser.add_argument(
        '--grids', nargs='+', type=grid, default=GRIDS, metavar='HxW', help='token grids, such as 50x84'
    )
    args = parser.parse_args()

    print_title(f'One GPSA layer of ConViT-{args.arch}, batch 1', args)
    print_header('tokens', 'pass', 'dense formula', 'bioattn_mm', 'faster', 'less memory')
    embed_dims, _, num_heads = ConViT.arch_settings[args.arch].values()
    for height, width in args.grids:
        dense, factorised = (cls(embed_dims, num_heads).to(args.device) for cls in (DenseGPSA, GPSA))
        factorised.load_state_dict(dense.state_dict())
        x = torch.randn(1, height, width, embed_dims, device=args.device)
        for name, training in (('forward', False), ('forward + backward', True)):
            results = [measure_layer(layer, x, training, args) for layer in (dense, factorised)]
            print_row(f'{height} x {width}', name, *results, *gains(*results))


def grid(text: str) -> tuple[int, int]:
    height, width = text.split('x')
    return int(height), int(width)


if __name__ == '__main__':
    main()
