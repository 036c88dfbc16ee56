#!/usr/bin/env python
"""What a pixel of an image attends to in a layer, or in several: the weights, drawn over the image and as numbers.

TransNeXt: the window and the pooled tokens (figure 7 of its paper). PerViT and ConViT: the attention that content
alone and position alone would give, the attention that the layer makes of both, and ConViT's gates (figure 6; figures
6 and 7). GAB: the same, and the attention of the Gaussian alone. VARS: the weights after each step of the recurrence,
and how strongly each step reconstructs each token (figure 5).

Colours are weights of pixels, relative to attention that is spread evenly over the image, on one scale: the weight of
a token divided by the number of its pixels. Those of VARS may be negative, and are drawn without their sign.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import bioattn_mm.cli.threads  # noqa: F401

from matplotlib.figure import Figure
from mmengine.config import Config
from rich.progress import track

from bioattn_mm.analysis.attention_figure import draw_attention, draw_layers, draw_models
from bioattn_mm.analysis.attention_panels import ATTENTION, Attention, attention_of
from bioattn_mm.analysis.images import ImageReader, PreparedImage, find_images
from bioattn_mm.analysis.models import build_backbone
from bioattn_mm.cli.command_line import ToolParser, models_to_compare, run_tool
from bioattn_mm.cli.config import load_config
from bioattn_mm.cli.reports import Report, unique_name
from bioattn_mm.errors import InputError
from bioattn_mm.layers import record_attention
from bioattn_mm.layers.attention_maps import Recording
from bioattn_mm.models.backbones import Backbone

TABLE = 'attention_maps.json'


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'analysis/attention_maps.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth --out maps --layer 2 '
        '--query 120 300',
        'analysis/attention_maps.py configs/convit/upernet_tiny_ade20k.py convit_tiny.pth --layer 0 4 9 --out layers',
        'analysis/attention_maps.py configs/transnext/upernet_tiny_ade20k.py --layer 4 '
        '--compare configs/pervit/upernet_tiny_ade20k.py pervit.pth --images street.jpg --size 512 768 --out two',
    )
    parser.add_argument(
        '--layer',
        type=int,
        nargs='+',
        default=[-1],
        metavar='N',
        help='number of the attention layer, from 0; negative numbers count from the end (default: -1). Of one layer '
        'of one model the maps and heads are drawn, of several a line for each: means over the heads',
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
        'position, Gaussian, step 0',
    )
    parser.add_argument('--heads', type=int, nargs='+', metavar='HEAD', help='heads to draw, from 0 (default: all)')
    parser.add_compare()
    parser.add_backbone_arguments(f'{TABLE} and a drawing of each image', max_images=4)
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    report = Report(args.out, TABLE)
    models = []
    for path, checkpoint in models_to_compare(args):
        # Only the images of the first config are used.
        dataloaders = () if models or args.images else ('val_dataloader',)
        config = load_config(path, mini=args.mini, cfg_options=args.cfg_options, dataloaders=dataloaders)
        backbone, weights = build_backbone(config, checkpoint, args.device)
        name = unique_name(path, [model.name for model in models])
        models.append(Model(name, config, backbone, weights, ImageReader(config, args.size, args.device)))
    paths = find_images(models[0].config, args.images, args.max_images)

    results = []
    for number, path in enumerate(track(paths, description='images')):
        drawing = f'{number:03d}_{path.stem}.png'
        of_models = {}
        for model in models:
            image = model.read(path)
            recordings = record_attention(model.backbone, image.inputs)
            query = args.query or [length // 2 for length in image.original_size]
            layers = [attention_of(choose_layer(recordings, layer), image, query) for layer in args.layer]
            of_models[model.name] = image, layers
            about = dict(image=str(path), drawing=drawing, query=list(query), model=model.name, weights=model.weights)
            results += [dict(about, **numbers_of(attention)) for attention in layers]
        report.write_figure(drawing, draw(of_models, models, args.part, args.heads))
    report.write_json(TABLE, dict(config=args.config, weights=models[0].weights, images=results), indent=None)
    for name, (_, layers) in of_models.items():
        print(f'{name}: {", ".join(attention.layer for attention in layers)}')
    print(f'{report}  {len(paths)} drawings such as {report.path(drawing)}')


@dataclass
class Model:
    """A backbone to look into, and what reads images for it."""

    name: str
    config: Config
    backbone: Backbone
    weights: str
    read: ImageReader


def draw(
    of_models: dict[str, tuple[PreparedImage, list[Attention]]],
    models: list[Model],
    part: str,
    heads: list[int] | None,
) -> Figure:
    """One layer of one model in full, several layers of one model, or several models."""
    sources = [Path(model.weights).name for model in models]
    if len(of_models) > 1:
        systems = [type(model.backbone).__name__ for model in models]
        names = systems if len(set(systems)) == len(systems) else of_models
        titles = [f'{name}, {source}' for name, source in zip(names, sources)]
        return draw_models(dict(zip(titles, of_models.values())), part)
    ((name, (image, layers)),) = of_models.items()
    if len(layers) > 1:
        return draw_layers(image, layers, f'{name}, {sources[0]}')
    return draw_attention(image, layers[0], part, heads, f'{layers[0].layer} of {name}, {sources[0]}')


def choose_layer(recordings: list[Recording], number: int) -> Recording:
    if not -len(recordings) <= number < len(recordings):
        raise InputError(f'--layer must be {-len(recordings)} to {len(recordings) - 1} in this model, got {number}')
    return recordings[number]


def numbers_of(attention: Attention) -> dict:
    """The drawing in numbers: for each map an array (heads, R, C) and the rectangle in the image that it covers."""
    numbers = dict(layer=attention.layer, token=list(attention.token), grid=list(attention.grid), maps=[])
    if attention.gates:
        numbers['gates'] = attention.gates
    for panel in attention.panels:
        values = [[[float(f'{v:.6g}') for v in row] for row in head] for head in panel.values]
        left, right, bottom, top = panel.extent
        numbers['maps'].append(dict(name=panel.name, left=left, top=top, right=right, bottom=bottom, values=values))
    return numbers


if __name__ == '__main__':
    main()
