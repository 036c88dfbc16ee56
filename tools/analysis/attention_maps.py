#!/usr/bin/env python
"""What a pixel of an image attends to in a layer, or in several: the weights, drawn over the image and as numbers.

TransNeXt: the window and the pooled tokens, and the softmax by content alone over all tokens and over the pooled
ones, which figure 7 of its paper shows. PerViT and ConViT: the attention that content alone and position alone would
give, the attention that the layer makes of both, and ConViT's gates (PerViT, figures 4 and 6; ConViT, figure 7). GAB:
the same, and the attention of the Gaussian alone. VARS: the weights after each step of the recurrence, and how
strongly each step reconstructs each token (VARS, figures 5 and 7). ViT, DeiT, Swin and others, in configs of mmdet,
mmseg and mmpretrain or of timm (--timm): the attention.

With --corrupt and --attack a line for each state of the image, and how much its maps have in common with those of
the image as it is: their correlation, and the overlap (IoU) of the fifth of the pixels with the largest weights
(figures 3 and 8 of the paper on VARS).

Colours are weights of pixels, relative to attention that is spread evenly over the image, on one scale: the weight of
a token divided by the number of its pixels. Those of VARS may be negative, and are drawn without their sign.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import bioattn_mm.process_settings  # noqa: F401

import numpy as np
from matplotlib.figure import Figure
from mmengine.config import Config
from rich.progress import track
from torch import nn

from bioattn_mm.analysis.attention_figure import (
    draw_attention,
    draw_conditions,
    draw_heads,
    draw_layers,
    draw_models,
)
from bioattn_mm.analysis.attention_panels import ATTENTION, RECEIVED, Attention, attention_of, relative_weight
from bioattn_mm.analysis.conditions import Changes, Condition, conditions_of
from bioattn_mm.analysis.consistency import consistency
from bioattn_mm.analysis.images import PreparedImage, find_images
from bioattn_mm.analysis.models import build_backbone, read_sources
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.reports import Report, print_table
from bioattn_mm.errors import InputError
from bioattn_mm.layers import record_attention
from bioattn_mm.layers.attention_maps import Recording

TABLE, CONSISTENCY = 'attention_maps.json', 'consistency.csv'
MEASURES = ('correlation', 'iou')


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'analysis/attention_maps.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth --out maps --layer 2 '
        '--query 120 300',
        'analysis/attention_maps.py configs/convit/upernet_tiny_ade20k.py convit_tiny.pth --layer 0 4 9 --out layers',
        'analysis/attention_maps.py configs/transnext/upernet_tiny_ade20k.py --layer 4 '
        '--compare configs/pervit/upernet_tiny_ade20k.py pervit.pth --images street.jpg --size 512 768 --out two',
        'analysis/attention_maps.py configs/vars/rvt-tiny-vars-d_8xb128_in1k.py vars.pth --corrupt gaussian_noise:3 '
        '--timm deit_tiny_patch16_224 pretrained --images street.jpg --out noise',
    )
    parser.add_argument(
        '--layer',
        type=int,
        nargs='+',
        default=[-1],
        metavar='N',
        help='number of the attention layer, from 0; negative numbers count from the end (default: -1). Of one layer '
        'of one model the maps and heads are drawn, of several a line for each: means over the heads, or the heads '
        'that --heads names',
    )
    parser.add_argument(
        '--query',
        type=int,
        nargs=2,
        metavar=('ROW', 'COLUMN'),
        help='pixel of the image file whose attention is drawn (default: the middle)',
    )
    parser.add_argument(
        '--part',
        default=ATTENTION,
        metavar='MAP',
        help='map whose heads are drawn: attention (default), or a part of it, such as window, pooled, content, '
        f'position, Gaussian, step 0; or {RECEIVED}: what each token gets, the mean over all queries, of VARS how '
        'strongly it is reconstructed',
    )
    parser.add_argument(
        '--heads', type=int, nargs='+', metavar='HEAD', help='heads to draw, from 0 (default: all of a single layer)'
    )
    parser.add_changes()
    parser.add_backbone_arguments(f'{TABLE} and a drawing of each image', max_images=4)
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    changes = Changes.read(args)
    report = Report(args.out, TABLE, *([CONSISTENCY] if changes else []))
    models = []
    for source in read_sources(args):
        backbone, weights = build_backbone(source.config, source.checkpoint, args.device, size=args.size)
        conditions = conditions_of(source.config, source.checkpoint, backbone, changes, args.size, args.device)
        models.append(Model(source.name, source.config, backbone, weights, conditions))
    paths = find_images(models[0].config, args.images, args.max_images)

    results = []
    for number, path in enumerate(track(paths, description='images')):
        drawing = f'{number:03d}_{path.stem}.png'
        found = [look_at(model, path, args) for model in models]
        for model, of_model in zip(models, found):
            about = dict(image=str(path), drawing=drawing, model=model.name, weights=model.weights)
            results += [
                dict(about, **numbers) for seen in of_model for numbers in numbers_of(seen, of_model[0], args)
            ]
        report.write_figure(drawing, draw(models, found, args.part, args.heads))
    report.write_json(
        TABLE, dict(config=args.config or models[0].name, weights=models[0].weights, images=results), indent=None
    )
    for model, of_model in zip(models, found):
        print(f'{model.name}: {", ".join(attention.layer for attention in of_model[0].layers)}')
    if changes:
        write_consistency(report, results)
    print(f'{report}  {len(paths)} drawings such as {report.path(drawing)}')


@dataclass
class Model:
    """A backbone to look into, and the states in which it gets images."""

    name: str
    config: Config
    backbone: nn.Module
    weights: str
    conditions: list[Condition]

    @property
    def kind(self) -> str:
        """The class of the backbone, or the name of timm's model."""
        return getattr(self.backbone, 'name', type(self.backbone).__name__)


@dataclass
class Seen:
    """What a pixel of an image attends to in some layers, in one state of the image."""

    condition: str
    image: PreparedImage
    query: tuple[int, int]
    layers: list[Attention]


def look_at(model: Model, path: Path, args: argparse.Namespace) -> list[Seen]:
    """The attention of a model to an image in each state, the image as it is first."""
    seen = []
    for condition in model.conditions:
        image = condition.read(path)
        recordings = record_attention(model.backbone, image.inputs)
        if not recordings:
            raise InputError(f'{model.name} has no attention layer that can be looked into: it is {model.kind}')
        query = tuple(args.query or (length // 2 for length in image.original_size))
        layers = [
            attention_of(choose_layer(recordings, layer), image, query, args.part == RECEIVED) for layer in args.layer
        ]
        seen.append(Seen(condition.name, image, query, layers))
    return seen


def draw(models: list[Model], found: list[list[Seen]], part: str, heads: list[int] | None) -> Figure:
    """One layer of one model in full, several layers of one model, several models, or several states of the image."""
    sources = [Path(model.weights).name for model in models]
    kinds = [model.kind for model in models]
    names = kinds if len(set(kinds)) == len(kinds) else [model.name for model in models]
    titles = [f'{name}, {source}' for name, source in zip(names, sources)]
    if len(found[0]) > 1:
        lines = {}
        for name, of_model in zip(names, found):
            for seen in of_model:
                lines.setdefault(seen.condition, []).extend(captioned(name, seen, of_model[0], part))
        return draw_conditions(lines, part, '; '.join(titles))
    firsts = [seen for (seen,) in found]
    if heads is not None and len(firsts) * len(firsts[0].layers) > 1:
        of_layers = [
            (f'{name}\n{attention.layer}', seen.image, attention)
            for name, seen in zip(names, firsts)
            for attention in seen.layers
        ]
        return draw_heads(of_layers, part, heads, '; '.join(titles))
    if len(models) > 1:
        of_models = {title: (seen.image, seen.layers) for title, seen in zip(titles, firsts)}
        return draw_models(of_models, part)
    (seen,) = firsts
    if len(seen.layers) > 1:
        return draw_layers(seen.image, seen.layers, f'{models[0].name}, {sources[0]}')
    title = f'{seen.layers[0].layer} of {models[0].name}, {sources[0]}'
    return draw_attention(seen.image, seen.layers[0], part, heads, title)


def captioned(name: str, seen: Seen, clean: Seen, part: str) -> list[tuple[str, PreparedImage, Attention]]:
    """The layers of a model in one state of the image, each with a title."""
    lines = []
    for attention, before in zip(seen.layers, clean.layers):
        second = attention.layer
        if seen is not clean:
            values = compare(attention, before, seen.image, part)
            second = f'correlation {values["correlation"]:.2f}, IoU {values["iou"]:.2f}'
        lines.append((f'{name}\n{second}', seen.image, attention))
    return lines


def compare(
    attention: Attention, clean: Attention, image: PreparedImage, part: str, head: int | None = None
) -> dict[str, float]:
    """The consistency of a map, of a head or the mean of all, with that of the image as it is."""
    height, width = image.pixels.shape[:2]
    size = tuple(image.inputs.shape[2:])
    one, other = (relative_weight(maps.parts[part], head, size)[:height, :width] for maps in (clean, attention))
    return consistency(one, other)


def choose_layer(recordings: list[Recording], number: int) -> Recording:
    if not -len(recordings) <= number < len(recordings):
        raise InputError(f'--layer must be {-len(recordings)} to {len(recordings) - 1} in this model, got {number}')
    return recordings[number]


def numbers_of(seen: Seen, clean: Seen, args: argparse.Namespace) -> Iterator[dict]:
    """The drawing in numbers: for each map an array (heads, R, C) and the rectangle in the image that it covers."""
    for attention, before in zip(seen.layers, clean.layers):
        numbers = dict(condition=seen.condition, query=list(seen.query), layer=attention.layer)
        numbers |= dict(token=list(attention.token), grid=list(attention.grid))
        if attention.gates:
            numbers['gates'] = attention.gates
        if seen is not clean:
            heads = max(len(panel.values) for panel in attention.parts[args.part])
            of_heads = [compare(attention, before, seen.image, args.part, head) for head in range(heads)]
            numbers['consistency'] = compare(attention, before, seen.image, args.part) | dict(heads=of_heads)
        numbers['maps'] = []
        for panel in attention.panels:
            values = [[[float(f'{v:.6g}') for v in row] for row in head] for head in panel.values]
            left, right, bottom, top = panel.extent
            place = dict(left=left, top=top, right=right, bottom=bottom)
            numbers['maps'].append(dict(name=panel.name, **place, values=values))
        yield numbers


def write_consistency(report: Report, results: list[dict]) -> None:
    """Write how consistent the maps of each image are, and print the means over the images."""
    changed = [result for result in results if 'consistency' in result]
    keys = ('model', 'layer', 'condition')
    report.write_csv(
        CONSISTENCY,
        [
            {key: result[key] for key in ('image', *keys)}
            | {measure: result['consistency'][measure] for measure in MEASURES}
            for result in changed
        ],
    )
    values = {}
    for result in changed:
        values.setdefault(tuple(result[key] for key in keys), []).append(result['consistency'])
    cells = [
        (*place, *(f'{np.nanmean([value[measure] for value in of_place]):.3f}' for measure in MEASURES))
        for place, of_place in values.items()
    ]
    print_table('maps beside those of the images as they are, means over the images', (*keys, *MEASURES), cells)


if __name__ == '__main__':
    main()
