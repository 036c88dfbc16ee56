#!/usr/bin/env python
"""PerViT beside its formula written out for every pair of tokens: time and peak memory, in one process."""

import argparse
from contextlib import contextmanager
from unittest import mock

import torch
import torch.nn.functional as F
from measure import Measurement, measure
from torch import Tensor

from bioattn_mm.layers import DistanceEmbedding, PeripheralAttention
from bioattn_mm.layers.peripheral_attention import GRID_STEP, KEY_MARGIN
from bioattn_mm.models import PerViT

# Tokens a side beyond which the formula written out takes too much memory: with 64 x 64 tokens, 1 GiB for each of
# the hidden tensors of a block of PerViT-Tiny, of which training keeps several in each of 12 blocks.
MAX_TOKENS_WRITTEN_OUT = {'forward': 64, 'forward + backward': 32}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--arch', default='tiny', help='variant (default: tiny)')
    parser.add_argument('--tokens', type=int, nargs='+', default=[14, 32, 64], help='tokens a side, of 16 pixels')
    parser.add_argument('--device', default='cpu', choices=['cpu', 'cuda'])
    parser.add_argument('--repeats', type=int, default=3, help='runs of each up to 32 tokens a side (default: 3)')
    parser.add_argument('--no-training', action='store_true', help='measure the forward pass only')
    args = parser.parse_args()

    print(f'PerViT-{args.arch}, batch 1, float32, {args.device}, {torch.get_num_threads()} threads\n')
    print('| tokens | pass | written out | bioattn_mm | faster | less memory |')
    print('| --- | --- | --- | --- | --- | --- |')
    notes = []
    for tokens in args.tokens:
        image = torch.randn(1, 3, 16 * tokens, 16 * tokens, device=args.device)
        repeats = args.repeats if tokens <= 32 else 1
        notes.append(forward(args, image, tokens, repeats))
        if not args.no_training:
            training(args, image, tokens, repeats)
    print('\n' + '\n'.join(notes))


@torch.no_grad()
def forward(args: argparse.Namespace, image: Tensor, tokens: int, repeats: int) -> str:
    """The forward pass in eval mode, at a size met for the first time and met before."""
    backbone = PerViT(args.arch).to(args.device).eval()

    def at_new_size() -> None:
        backbone.eval()  # drops what was kept
        backbone(image)

    backbone(image)  # warm-up
    backbone.eval()  # so that what is kept counts as memory of the first pass
    new = measure(at_new_size, args.device, repeats)
    seen = measure(lambda: backbone(image), args.device, max(3, repeats))
    with without_position():
        plain = measure(lambda: backbone(image), args.device, max(3, repeats))
    backbone.eval()
    written_out = None
    if tokens <= MAX_TOKENS_WRITTEN_OUT['forward']:
        with formula_written_out():
            written_out = measure(lambda: backbone(image), args.device, repeats)
    row(tokens, 'forward, new size', written_out, new)
    row(tokens, 'forward, size seen before', written_out, seen)
    extra = 100 * (seen.seconds / plain.seconds - 1)
    return (
        f'- {tokens} x {tokens}: without Phi_p {plain.seconds:.3f} s, with the one kept {seen.seconds:.3f} s '
        f'({extra:+.0f} %)'
    )


def training(args: argparse.Namespace, image: Tensor, tokens: int, repeats: int) -> None:
    """Forward and backward, in train mode."""
    backbone = PerViT(args.arch).to(args.device)

    def once() -> None:
        backbone.zero_grad()
        sum(output.mean() for output in backbone(image)).backward()

    ours = measure(once, args.device, repeats)
    written_out = None
    if tokens <= MAX_TOKENS_WRITTEN_OUT['forward + backward']:
        with formula_written_out():
            written_out = measure(once, args.device, repeats)
    row(tokens, 'forward + backward', written_out, ours)


def row(tokens: int, name: str, written_out: Measurement | None, ours: Measurement) -> None:
    cells = [f'{tokens} x {tokens}', name]
    cells += [f'{m.seconds:.2f} s, {m.mebibytes:.0f} MiB' if m else 'not run' for m in (written_out, ours)]
    if written_out:
        # What a warm pass takes beyond the process may round to nothing.
        memory = written_out.mebibytes / max(1, ours.mebibytes)
        cells += [f'{written_out.seconds / ours.seconds:.1f}x', f'{memory:.1f}x']
    else:
        cells += ['', '']
    print('| ' + ' | '.join(cells) + ' |', flush=True)


@contextmanager
def formula_written_out():
    """Eq. 5-8 for every pair of tokens, in place of the layer's own forward."""
    with mock.patch.object(PeripheralAttention, 'forward', _written_out):
        yield


@contextmanager
def without_position():
    """Content-based attention alone."""
    with mock.patch.object(PeripheralAttention, 'forward', _content_only):
        yield


def _written_out(layer: PeripheralAttention, x: Tensor, distance_embedding: DistanceEmbedding) -> Tensor:
    height, width = x.shape[1:3]
    query, key, value = layer._query_key_value(x)

    def coordinates(margin: int) -> Tensor:
        rows, columns = (torch.arange(-margin, length + margin, device=x.device) for length in (height, width))
        return GRID_STEP * torch.cartesian_prod(rows, columns).to(x.dtype)

    distance = torch.cdist(coordinates(0), coordinates(KEY_MARGIN))  # (N, keys and margin)
    position = layer.position
    hidden = distance_embedding.proj(distance[..., None]).transpose(1, 2)
    hidden = hidden.unflatten(2, (height + 2 * KEY_MARGIN, width + 2 * KEY_MARGIN))
    hidden = F.relu(position.norm1(position.conv1(hidden)))
    phi_p = position.norm2(position.conv2(hidden)).sigmoid().flatten(2).transpose(0, 1)

    logits = query @ key.transpose(-2, -1) * layer.head_channels**-0.5
    phi_c = (logits - logits.amax(-1, keepdim=True)).exp()
    output = F.normalize(phi_c * phi_p, p=1, dim=-1) @ value
    return layer.proj(output[..., : layer.head_channels].transpose(1, 2).reshape(x.shape))


def _content_only(layer: PeripheralAttention, x: Tensor, distance_embedding: DistanceEmbedding) -> Tensor:
    output = F.scaled_dot_product_attention(*layer._query_key_value(x), scale=layer.head_channels**-0.5)
    return layer.proj(output[..., : layer.head_channels].transpose(1, 2).reshape(x.shape))


if __name__ == '__main__':
    main()
