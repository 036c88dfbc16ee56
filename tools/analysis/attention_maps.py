#!/usr/bin/env python
"""What a pixel of an image attends to in a layer, or in several: the weights, drawn over the image and as numbers.

TransNeXt: the window and the pooled tokens, and the softmax by content alone over all tokens and over the pooled
ones, which figure 7 of its paper shows. PerViT and ConViT: the attention that content alone and position alone would
give, the attention that the layer makes of both, and ConViT's gates (PerViT, figures 4 and 6; ConViT, figure 7). GAB:
the same, and the attention of the Gaussian alone. VARS: the weights after each step of the recurrence, and how
strongly each step reconstructs each token (VARS, figures 5 and 7). ViT, DeiT, Swin and others, in configs of mmdet,
mmseg and mmpretrain or of timm (--timm): the attention.

With --corrupt and --attack you get a line for each state of the image, and how much its maps have in common with
those of the clean image: their correlation, and the overlap (IoU) of the fifth of the pixels with the largest weights
(figures 3 and 8 of the paper on VARS).

Colours are weights of pixels: the weight of a token divided by the number of its pixels, relative to attention spread
evenly over the image, on one scale. Weights of VARS may be negative; their sign is not drawn.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import bioattn_mm.cli.threads_and_memory  # noqa: F401

import numpy as np
from matplotlib.figure import Figure
from rich.progress import track

from bioattn_mm.analysis.attention import ATTENTION, RECEIVED, Attention, attention_of
from bioattn_mm.analysis.attention_figure import (
    FREE,
    PHOTO,
    Picture,
    draw_attention,
    draw_layers,
    draw_lines,
    pictures_of_heads,
)
from bioattn_mm.analysis.conditions import CLEAN, Changes, Model
from bioattn_mm.analysis.images import PreparedImage, find_images
from bioattn_mm.analysis.maps import consistency
from bioattn_mm.analysis.models import attention_layers, numbered, read_sources
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.reports import Report, print_table

TABLE, CONSISTENCY = 'attention_maps.json', 'consistency.csv'
MEASURES = ('correlation', 'iou')
MAX_IN_ONE_LINE = 4


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
    help = (
        'attention layers, from 0, or from the end with -1 (default: -1): of one layer you get all maps and heads, '
        'of several the means'
    )
    parser.add_argument('--layer', type=int, nargs='+', default=[-1], metavar='N', help=help)
    help = 'pixel of the image file whose attention you want (default: the middle)'
    parser.add_argument('--query', type=int, nargs=2, metavar=('ROW', 'COLUMN'), help=help)
    help = (
        'map to draw: attention (default), a part of it, such as window, pooled or position, or '
        f'{RECEIVED}, what each token gets'
    )
    parser.add_argument('--part', default=ATTENTION, metavar='MAP', help=help)
    help = 'heads to draw, from 0 (default: all, if you name one layer)'
    parser.add_argument('--heads', type=int, nargs='+', metavar='HEAD', help=help)
    parser.add_shared('--corrupt', '--attack', '--epsilon')
    parser.add_backbone_arguments(f'{TABLE} and a drawing of each image', max_images=4)
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    changes = Changes.read(args)
    report = Report(args.out, TABLE, *([CONSISTENCY] if changes else []))
    models = [Model.build(source, changes, args.size, args.device) for source in read_sources(args)]
    paths = find_images(models[0].source.config, args.images, args.max_images)

    results = []
    for number, path in enumerate(track(paths, description='images')):
        drawing = f'{number:03d}_{path.stem}.png'
        found = [look_at(model, path, args) for model in models]
        report.write_figure(drawing, draw(models, found, args.part, args.heads))
        for model, of_model in zip(models, found):
            about = dict(image=str(path), drawing=drawing, model=model.source.name, weights=model.weights)
            results += [
                about | numbers for seen in of_model.values() for numbers in numbers_of(seen, of_model[CLEAN], args)
            ]
    about = dict(config=args.config or models[0].source.name, weights=models[0].weights)
    report.write_json(TABLE, dict(about, images=results), indent=None)
    for model, of_model in zip(models, found):
        print(f'{model.source.name}: {", ".join(attention.layer for attention in of_model[CLEAN].layers)}')
    if changes:
        write_consistency(report, results)
    print(f'{report}  {len(paths)} drawings such as {report.path(drawing)}')


@dataclass
class Seen:
    """What a pixel of an image attends to in some layers, in one state of the image."""

    condition: str
    image: PreparedImage
    query: tuple[int, int]
    layers: list[Attention]


def look_at(model: Model, path: Path, args: argparse.Namespace) -> dict[str, Seen]:
    """The attention of a model to an image in each state, the image as it is first."""
    seen = {}
    for condition, read in model.readers.items():
        image = read(path)
        recordings = attention_layers(model.source.name, model.backbone, image.inputs)
        query = tuple(args.query or (length // 2 for length in image.original_size))
        chosen = [numbered(recordings, layer, '--layer') for layer in args.layer]
        layers = [attention_of(recording, image, query, args.part == RECEIVED) for recording in chosen]
        seen[condition] = Seen(condition, image, query, layers)
    return seen


def draw(models: list[Model], found: list[dict[str, Seen]], part: str, heads: list[int] | None) -> Figure:
    """One layer of one model in full, several layers of one model, several models, or several states of the image."""
    sources = [Path(model.weights).name for model in models]
    kinds = [getattr(model.backbone, 'name', type(model.backbone).__name__) for model in models]
    names = kinds if len(set(kinds)) == len(kinds) else [model.source.name for model in models]
    titles = [f'{name}, {source}' for name, source in zip(names, sources)]
    title = '; '.join(titles)
    firsts = [of_model[CLEAN] for of_model in found]
    image, layers = firsts[0].image, firsts[0].layers
    if len(found[0]) > 1:  # a line for each state, with the layers of all models
        lines = []
        for condition in found[0]:
            line = [Picture(f'{condition}, in pixels', found[0][condition].image, layers[0])]
            for name, of_model in zip(names, found):
                line += captioned(name, of_model[condition], of_model[CLEAN], part)
            lines.append(line)
        return draw_lines(lines, title)
    if heads is not None and len(models) * len(layers) > 1:  # a line for each layer of each model, with its heads
        lines = [
            [Picture(f'{name}\n{attention.layer}', seen.image, attention)]
            + pictures_of_heads(seen.image, attention, part, heads)
            for name, seen in zip(names, firsts)
            for attention in seen.layers
        ]
        return draw_lines(lines, title, max(map(len, lines)))
    if len(models) > 1 or (len(layers) > 1 and part != ATTENTION):
        # A line for each layer, with all models; one layer of many models takes two lines.
        lines = [[FREE] for _ in layers]
        lines[0] = [Picture(PHOTO, image, layers[0])]
        for number, line in enumerate(lines):
            line += [
                Picture(f'{of_model}\n{seen.layers[number].layer}', seen.image, seen.layers[number], part)
                for of_model, seen in zip(titles, firsts)
            ]
        columns = 1 + len(models)
        return draw_lines(lines, None, -(-columns // 2) if len(lines) == 1 and columns > MAX_IN_ONE_LINE else columns)
    if len(layers) > 1:
        return draw_layers(image, layers, f'{models[0].source.name}, {sources[0]}')
    return draw_attention(
        image, layers[0], part, heads, f'{layers[0].layer} of {models[0].source.name}, {sources[0]}'
    )


def captioned(name: str, seen: Seen, clean: Seen, part: str) -> Iterator[Picture]:
    """The layers of a model in one state of the image, each with its consistency with the image as it is."""
    for attention, before in zip(seen.layers, clean.layers):
        text = attention.layer
        if seen is not clean:
            values = compare(attention, before, seen.image, part)
            text = f'correlation {values["correlation"]:.2f}, IoU {values["iou"]:.2f}'
        yield Picture(f'{name}\n{text}', seen.image, attention, part)


def compare(
    attention: Attention, clean: Attention, image: PreparedImage, part: str, head: int | None = None
) -> dict[str, float]:
    """The consistency of a map, of a head or the mean of all, with that of the image as it is."""
    return consistency(*(Picture('', image, of_state, part, head).values for of_state in (clean, attention)))


def numbers_of(seen: Seen, clean: Seen, args: argparse.Namespace) -> Iterator[dict]:
    """The drawing in numbers: for each map an array (heads, R, C) and the rectangle in the image that it covers."""
    for attention, before in zip(seen.layers, clean.layers):
        numbers = dict(condition=seen.condition, query=list(seen.query), layer=attention.layer)
        numbers |= dict(token=list(attention.token), grid=list(attention.grid))
        if attention.gates:
            numbers['gates'] = attention.gates
        if seen is not clean:
            heads = [None, *range(attention.num_heads(args.part))]
            of_mean, *of_heads = (compare(attention, before, seen.image, args.part, head) for head in heads)
            numbers['consistency'] = of_mean | dict(heads=of_heads)
        numbers['maps'] = []
        for panel in attention.panels:
            values = [[[float(f'{v:.6g}') for v in row] for row in head] for head in panel.values]
            left, right, bottom, top = panel.extent
            place = dict(left=left, top=top, right=right, bottom=bottom)
            numbers['maps'].append(dict(name=panel.name, **place, values=values))
        yield numbers


def write_consistency(report: Report, results: list[dict]) -> None:
    """Write how consistent the maps of each image are, and print the means over the images."""
    keys = ('model', 'layer', 'condition')
    rows, of_places = [], {}
    for result in results:
        if 'consistency' in result:
            values = {measure: result['consistency'][measure] for measure in MEASURES}
            rows.append({key: result[key] for key in ('image', *keys)} | values)
            of_places.setdefault(tuple(result[key] for key in keys), []).append(list(values.values()))
    report.write_csv(CONSISTENCY, rows)
    cells = [(*place, *(f'{mean:.3f}' for mean in np.nanmean(values, 0))) for place, values in of_places.items()]
    print_table('maps beside those of the images as they are, means over the images', (*keys, *MEASURES), cells)


if __name__ == '__main__':
    main()
