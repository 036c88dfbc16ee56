#!/usr/bin/env python
"""Attention with a relative position bias, against the bias of all pairs of tokens: time and peak memory.

One layer of GABViT-Small and of stage 4 of TransNeXt-Tiny. `floor` is the time of the matrix products alone, at the
rate that a large one reaches here.
"""

import math

import torch
import torch.nn.functional as F
from measure import (
    Measurement,
    gains,
    make_parser,
    measure,
    measure_layer,
    print_header,
    print_row,
    print_title,
    time_text,
)
from torch import Tensor

from bioattn_mm.layers import GaussianRelPosAttention, LengthScaledAttention, LogCPB
from bioattn_mm.models import GABViT, TransNeXt

IMAGES = ((512, 512), (800, 1333), (1600, 2666))
# Tokens up to which the bias of all pairs is measured: with four times as many, training takes about 20 GiB.
MAX_TOKENS_IN_PAIRS = 5000


class PairsGAB(GaussianRelPosAttention):
    """The layer of GABViT with the bias of all pairs in memory."""

    def forward(self, x: Tensor, shared_rel_pos: None = None) -> Tensor:
        query, key, value = heads_first(self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(-3))
        bias = self.rel_pos.get_bias(tuple(x.shape[1:3]))
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return self.proj(output.transpose(1, 2).reshape(x.shape))


class PairsLengthScaled(LengthScaledAttention):
    """The layer of TransNeXt with the bias of all pairs in memory."""

    def forward(self, x: Tensor) -> Tensor:
        grid = tuple(x.shape[1:3])
        query, key, value = heads_first(self._query_key_value(x))
        bias, rows = self.position_bias(grid, grid)
        bias = bias[:, rows].transpose(2, 3).flatten(3).flatten(1, 2)
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)
        return self.proj(output.transpose(1, 2).reshape(x.shape))


def heads_first(tokens: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """(B, H, W, heads, d) to (B, heads, H * W, d)."""
    return tuple(x.flatten(1, 2).transpose(1, 2) for x in tokens)


def gab_layers() -> tuple[PairsGAB, GaussianRelPosAttention]:
    embed_dims, _, num_heads = GABViT.arch_settings['small'].values()
    return tuple(cls(embed_dims, num_heads, sigma=5.0) for cls in (PairsGAB, GaussianRelPosAttention))


def transnext_layers(mode: str) -> tuple[PairsLengthScaled, LengthScaledAttention]:
    embed_dims, num_heads = (TransNeXt.arch_settings['tiny'][name][3] for name in ('embed_dims', 'num_heads'))
    train_grid = (16, 16)  # of 512 x 512 pixels
    return tuple(
        cls(embed_dims, num_heads, LogCPB(num_heads, (7, 7), mode, train_grid, train_grid))
        for cls in (PairsLengthScaled, LengthScaledAttention)
    )


# By the name for `--layers`: the name in the table, the two layers, and the stride of their tokens.
LAYERS = {
    'gab': ('GABViT-S', gab_layers, 16),
    'transnext': ('TransNeXt-T, extrapolated', lambda: transnext_layers('extrapolate'), 32),
    'interpolated': ('TransNeXt-T, interpolated from 512', lambda: transnext_layers('interpolate'), 32),
}


def main() -> None:
    parser = make_parser(__doc__, repeats=3)
    parser.add_argument('--layers', nargs='+', default=list(LAYERS), choices=LAYERS, help='default: all')
    args = parser.parse_args()
    rate = multiply_adds_per_second(args.device)
    print_title('One layer, batch 1', args)
    print_header('layer', 'image', 'pass', 'floor', 'all pairs', 'bioattn_mm', 'faster', 'less memory', 'KiB a token')
    for name, make_layers, stride in (LAYERS[key] for key in args.layers):
        pairs, ours = (layer.to(args.device) for layer in make_layers())
        ours.load_state_dict(pairs.state_dict())
        channels = ours.proj.in_features
        for image in IMAGES:
            grid = tuple(math.ceil(length / stride) for length in image)
            tokens = math.prod(grid)
            x = torch.randn(1, *grid, channels, device=args.device)
            for training in (False, True):
                # Attention has two products, and seven with the backward pass, which computes the first again.
                products = (7 if training else 2) * tokens**2 * channels + (
                    12 if training else 4
                ) * tokens * channels**2
                before = measure_layer(pairs, x, training, args) if tokens <= MAX_TOKENS_IN_PAIRS else None
                after = measure_layer(ours, x, training, args)
                print_row(
                    name,
                    ' x '.join(map(str, image)),
                    'forward + backward' if training else 'forward',
                    time_text(products / rate),
                    before or 'not run',
                    after,
                    *(gains(before, after) if before else ('', '')),
                    f'{after.mebibytes * 1024 / tokens:.1f}',
                )


def multiply_adds_per_second(device: str) -> float:
    """What a matrix product of 1024 x 1024 x 1024 reaches."""
    matrix = torch.randn(1024, 1024, device=device)
    fastest: Measurement = measure(lambda: matrix @ matrix, device, repeats=20)
    return 1024**3 / fastest.seconds


if __name__ == '__main__':
    main()
