#!/usr/bin/env python
"""PerViT against its formula written out for every pair of tokens: time and peak memory, in one process."""

import argparse
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from measure import Measurement, gains, make_parser, measure, print_header, print_row, print_title, training_step
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor

from bioattn_mm.layers import DistanceEmbedding, PeripheralAttention
from bioattn_mm.layers.peripheral_attention import GRID_STEP, KEY_MARGIN
from bioattn_mm.models import PerViT
from bioattn_mm.ops.backends import choose_backend

CONFIGS = Path(__file__).parents[1] / 'configs'
# Largest grids, in tokens a side, at which the formula written out is run. With 64 x 64 tokens each hidden tensor of
# a block of PerViT-Tiny takes 1 GiB, and training keeps several of them in each of 12 blocks.
MAX_TOKENS_WRITTEN_OUT = {'forward': 64, 'forward + backward': 32}


def main() -> None:
    parser = make_parser(__doc__, repeats=3)
    parser.add_argument('--arch', default='tiny', help='variant (default: tiny)')
    parser.add_argument('--tokens', type=int, nargs='+', default=[14, 32, 64], help='tokens a side, of 16 pixels')
    parser.add_argument('--no-training', action='store_true', help='measure the forward pass only')
    parser.add_argument('--detector', action='store_true', help='measure a training step of Mask R-CNN only')
    args = parser.parse_args()
    if args.detector:
        detector(args)
        return

    print_title(f'PerViT-{args.arch}, batch 1', args)
    print_header('tokens', 'pass', 'written out', 'bioattn_mm', 'faster', 'less memory')
    notes = []
    for tokens in args.tokens:
        image = torch.randn(1, 3, 16 * tokens, 16 * tokens, device=args.device)
        notes.append(forward(args, image, tokens))
        if not args.no_training:
            training(args, image, tokens)
    print('\n' + '\n'.join(notes))


@torch.no_grad()
def forward(args: argparse.Namespace, image: Tensor, tokens: int) -> str:
    """The forward pass in eval mode; returns a note on what position-based attention costs."""
    backbone = PerViT(args.arch).to(args.device).eval()

    def at_new_size() -> None:
        backbone.eval()  # empties the cache of position-based attention
        backbone(image)

    backbone(image)  # warm-up
    backbone.eval()  # so that the cache counts as memory of the first pass
    new = measure(at_new_size, args.device, args.repeats)
    written_out = None
    if tokens <= MAX_TOKENS_WRITTEN_OUT['forward']:
        with formula_written_out():
            written_out = measure(lambda: backbone(image), args.device, written_out_repeats(args, tokens))
    row(tokens, 'forward', written_out, new)
    last = new
    if choose_backend(image.device, None) != 'cpu':  # which keeps log Phi_p of sizes met before
        backbone(image)
        last = measure(lambda: backbone(image), args.device, args.repeats)
        row(tokens, 'forward, size seen before', written_out, last)
    with without_position():
        plain = measure(lambda: backbone(image), args.device, args.repeats)
    extra = 100 * (last.seconds / plain.seconds - 1)
    return (
        f'- {tokens} x {tokens}: without Phi_p, with attention by PyTorch, {plain.seconds:.3f} s, '
        f'with Phi_p {last.seconds:.3f} s ({extra:+.0f} %)'
    )


def training(args: argparse.Namespace, image: Tensor, tokens: int) -> None:
    """Forward and backward, in train mode."""
    backbone = PerViT(args.arch).to(args.device)
    step = training_step(backbone, image)
    ours = measure(step, args.device, args.repeats)
    written_out = None
    if tokens <= MAX_TOKENS_WRITTEN_OUT['forward + backward']:
        with formula_written_out():
            written_out = measure(step, args.device, written_out_repeats(args, tokens))
    row(tokens, 'forward + backward', written_out, ours)


def detector(args: argparse.Namespace) -> None:
    """Losses of Mask R-CNN and their gradients, for images of 800 x 1333 pixels with five objects each."""
    from mmdet.testing import demo_mm_inputs  # after bioattn_mm, which gives mmdet the operators of mmcv

    config = Config.fromfile(CONFIGS / f'pervit/mask_rcnn_{args.arch}_coco.py')
    config.model.backbone.init_cfg = None
    init_default_scope('mmdet')
    model = MODELS.build(config.model).to(args.device).train()

    print_title(f'Mask R-CNN on PerViT-{args.arch}, a training step without the optimizer', args)
    print_header('images of 800 x 1333', 'time, peak memory')

    def step(data: dict) -> None:
        model.zero_grad()
        model.parse_losses(model(**data, mode='loss'))[0].backward()

    for batch in (1, 2):
        data = demo_mm_inputs(batch, [[3, 800, 1333]] * batch, num_items=[5] * batch, with_mask=True)
        data = model.data_preprocessor(data, training=True)
        print_row(batch, measure(partial(step, data), args.device, args.repeats))


def written_out_repeats(args: argparse.Namespace, tokens: int) -> int:
    return args.repeats if tokens <= 32 else 1  # larger grids take minutes


def row(tokens: int, name: str, written_out: Measurement | None, ours: Measurement) -> None:
    cells = gains(written_out, ours) if written_out else ('', '')
    print_row(f'{tokens} x {tokens}', name, written_out or 'not run', ours, *cells)


@contextmanager
def formula_written_out():
    """Run the layer by eq. 5-8, for all pairs of tokens at once."""
    with mock.patch.object(PeripheralAttention, 'forward', _written_out):
        yield


@contextmanager
def without_position():
    """Run the layer without position-based attention."""
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

    logits = query @ key.transpose(-2, -1) * layer.head_dims**-0.5
    phi_c = (logits - logits.amax(-1, keepdim=True)).exp()
    output = F.normalize(phi_c * phi_p, p=1, dim=-1) @ value
    return layer.proj(output.transpose(1, 2).reshape(x.shape))


def _content_only(layer: PeripheralAttention, x: Tensor, distance_embedding: DistanceEmbedding) -> Tensor:
    output = F.scaled_dot_product_attention(*layer._query_key_value(x), scale=layer.head_dims**-0.5)
    return layer.proj(output.transpose(1, 2).reshape(x.shape))


if __name__ == '__main__':
    main()
