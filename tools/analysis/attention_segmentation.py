#!/usr/bin/env python
"""How well attention alone finds objects: the strong tokens are taken as a segmentation and compared with masks.

Section 4.3 and table 4 of VARS (Shi et al., ICML 2022). For each layer and image: how much attention every token
gets, averaged over all queries (for VARS, how strongly it is reconstructed), scaled to 0 to 1. Tokens above 0.3
(--threshold) are the predicted objects; mIoU, false positives, false negatives and the Jaccard index of the
foreground compare them with the masks. You get the mean over the heads and the best head of the layer, as in DINO
(Caron et al., 2021), and the score of calling everything foreground.

Masks come with a config's validation images (--classes chooses the foreground), or from a folder of label maps
(--masks, --split), where 0 is background and 255 is ignored.

With --fixations, in the layout of MIT1003, the maps are compared with where people look, by normalised scanpath
saliency (VARS, table 5).
"""

import argparse

import bioattn_mm.cli.threads_and_memory  # noqa: F401

import mmcv
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from mmengine.config import Config
from rich.progress import track

from bioattn_mm.analysis.attention import attention_received
from bioattn_mm.analysis.attention_segmentation import (
    Sample,
    above_threshold,
    read_dataset,
    read_fixations,
    read_masks,
    scanpath_saliency,
    scores,
    to_file,
)
from bioattn_mm.analysis.conditions import CLEAN, Model
from bioattn_mm.analysis.figures import draw_heat, panels
from bioattn_mm.analysis.models import Source, attention_layers, numbered, read_sources
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.reports import Report, print_table
from bioattn_mm.errors import InputError
from bioattn_mm.runtime.arguments import number_to

FILES = ('attention_segmentation.csv', 'attention_segmentation.json', 'attention_segmentation.png')
MEAN, EVERYTHING = 'mean', 'everything'
MEASURES = dict(jaccard='Jaccard', miou='mIoU', fp='FP', fn='FN')
SALIENCY = dict(nss='NSS')
# Images in the drawing.
NUM_DRAWN = 4


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'analysis/attention_segmentation.py configs/vars/upernet_rvt_tiny_vars_sd_ade20k.py vars.pth '
        '--compare configs/transnext/upernet_micro_ade20k.py transnext.pth --classes person car --out segmentation',
        'analysis/attention_segmentation.py --timm deit_tiny_patch16_224 pretrained --images VOC/JPEGImages '
        '--masks VOC/SegmentationClass --split VOC/ImageSets/Segmentation/val.txt --size 224 224 --out segmentation',
        'analysis/attention_segmentation.py configs/vars/rvt-tiny-vars-d_8xb128_in1k.py vars.pth '
        '--images MIT1003/ALLSTIMULI --fixations MIT1003/ALLFIXATIONMAPS --max-images 1003 --out saliency',
    )
    help = 'attention layers, from 0; negative numbers count from the end (default: all)'
    parser.add_argument('--layer', type=int, nargs='+', metavar='N', help=help)
    help = 'attention above which a token is an object, from 0, the least in the image, to 1, the most (default: 0.3)'
    parser.add_argument('--threshold', type=number_to(1), default=0.3, metavar='PART', help=help)
    help = "classes of the config that are foreground (default: all but 'background')"
    parser.add_argument('--classes', nargs='+', metavar='NAME', help=help)
    parser.add_argument('--masks', metavar='DIR', help='folder of label maps (PNG) with the names of the images')
    help = 'folder with NAME_fixPts.jpg for each image, as in MIT1003'
    parser.add_argument('--fixations', metavar='DIR', help=help)
    parser.add_argument('--split', metavar='FILE', help='file with the names of the images to use, one a line')
    help = 'number of queries to average attention over (default: 256)'
    parser.add_integer('--queries', minimum=1, default=256, metavar='N', help=help)
    parser.add_backbone_arguments(', '.join(FILES), max_images=100)
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    if args.threshold == 1:
        raise InputError('--threshold must be at least 0 and below 1, got 1')
    if bool(args.images) != bool(args.masks or args.fixations) or args.images and args.classes:
        raise InputError('--images goes together with --masks or --fixations, and without --classes')
    if args.masks and args.fixations:
        raise InputError('--masks and --fixations are two measurements: leave one out')
    if args.split and not args.masks:
        raise InputError('--split chooses from --images, which is not there')
    report = Report(args.out, *FILES)
    sources = read_sources(args)
    samples = read_samples(args, sources[0].config)
    measures = SALIENCY if args.fixations else MEASURES

    weights, rows, drawn = {}, [], {}
    for source in sources:
        weights[source.name], of_model, maps = measure(source, samples, args)
        rows += of_model
        # Of each model the layer is drawn whose mean map is the best.
        of_layers = [row for row in of_model if row['head'] == MEAN]
        best = max(of_layers, key=lambda row: np.nan_to_num(row[next(iter(measures))], nan=-np.inf))['layer']
        drawn[f'{source.name}, layer {best}'] = maps[best]
    everything = {}
    if not args.fixations:
        everything = means([scores(np.ones_like(sample.foreground), sample) for sample in samples])

    report.write_csv(FILES[0], rows)
    document = dict(weights=weights, images=len(samples), threshold=args.threshold, everything=everything, heads=rows)
    report.write_json(FILES[1], document)
    report.write_figure(FILES[2], draw(samples[:NUM_DRAWN], drawn, measures))
    print_rows(rows, everything, f'{len(samples)} images', args.threshold)
    print(report)


def read_samples(args: argparse.Namespace, config: Config) -> list[Sample]:
    """The images that have something to find: those of the options, or those of the config.

    Raises:
        InputError: There are none.
    """
    if args.fixations:
        samples = list(read_fixations(args.images, args.fixations, args.max_images))
    elif args.masks:
        samples = list(read_masks(args.images, args.masks, args.max_images, args.split))
    else:
        samples = list(read_dataset(config, args.classes, args.max_images))
    samples = [sample for sample in samples if (sample.foreground & sample.labelled).any()]
    if not samples:
        otherwise = 'label maps of values from 1 to 254' if args.masks else 'other --classes'
        raise InputError(
            f'no image has foreground or fixations: choose {otherwise}, or more images with --max-images'
        )
    return samples


def measure(
    source: Source, samples: list[Sample], args: argparse.Namespace
) -> tuple[str, list[dict], dict[int, list[tuple]]]:
    """Compare the attention of a model with the samples.

    Returns:
        What its weights are; a row for each layer and head, and for their mean; and for each layer what may be drawn
        of the first images: the mean map, what is chosen of it, and its measures.

    Raises:
        InputError: The model has no attention that can be looked into, or a mask is of another size than its image.
    """
    model = Model.build(source, size=args.size, device=args.device)
    found, drawn = {}, {}
    for sample in track(samples, description=source.name):
        image = model.readers[CLEAN](sample.image)
        if image.original_size != sample.foreground.shape:
            sizes = ('{1} x {0}'.format(*size) for size in (sample.foreground.shape, image.original_size))
            raise InputError('the mask of {} has {} pixels, the image {}'.format(sample.image, *sizes))
        recordings = list(enumerate(attention_layers(source.name, model.backbone, image.inputs)))
        for layer, recording in [
            numbered(recordings, number, '--layer') for number in args.layer or ()
        ] or recordings:
            received = attention_received(recording, args.queries)
            for head, values in {MEAN: received.mean(0), **dict(enumerate(received))}.items():
                pixels = to_file(values, image)
                chosen = to_file(above_threshold(values, args.threshold).astype(np.uint8), image)
                if args.fixations:
                    of_image = dict(nss=scanpath_saliency(pixels, sample.foreground))
                else:
                    of_image = scores(chosen.astype(bool), sample)
                found.setdefault((layer, recording.name, head), []).append(of_image)
                if head == MEAN and len(drawn.setdefault(layer, [])) < NUM_DRAWN:
                    drawn[layer].append((pixels, chosen, of_image))
    rows = [
        dict(model=source.name, layer=layer, name=name, head=head, **means(of_images))
        for (layer, name, head), of_images in found.items()
    ]
    return model.weights, rows, drawn


def means(of_images: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each measure over the images."""
    return {key: float(np.nanmean([values[key] for values in of_images])) for key in of_images[0]}


def draw(samples: list[Sample], models: dict[str, list[tuple]], measures: dict[str, str]) -> Figure:
    """Draw a line for each image: its mask, and the maps of the models with the outline of what they choose.

    Of fixations (`measures` is `SALIENCY`) the points, and the maps alone.
    """
    (measure, name_of_measure), *_ = measures.items()
    columns = 1 + len(models)
    figure, axes = panels(len(samples) * columns, columns, 2.6, 2.3)
    for number, sample in enumerate(samples):
        picture = mmcv.imread(str(sample.image), channel_order='rgb')
        first, *others = axes[number * columns : (number + 1) * columns]
        first.imshow(picture)
        if measures is SALIENCY:
            first.scatter(*np.nonzero(sample.foreground)[::-1], s=2, color='red')
        else:
            outline(first, sample.foreground)
        first.set_title(f'image and {"fixations" if measures is SALIENCY else "mask"}, in pixels', fontsize=7)
        for axis, (name, maps) in zip(others, models.items()):
            values, chosen, of_image = maps[number]
            axis.imshow(draw_heat(picture, (values - values.min()) / (np.ptp(values) or 1)))
            if measures is MEASURES:
                outline(axis, chosen)
            axis.set_title(f'{name}\n{name_of_measure} {of_image[measure]:.2f}', fontsize=7)
            axis.set(xticks=[], yticks=[])
    return figure


def outline(axis: Axes, mask: np.ndarray) -> None:
    """Draw the border of a mask, where it has one."""
    if mask.any() and not mask.all():
        axis.contour(mask, levels=[0.5], colors='white', linewidths=1.8)
        axis.contour(mask, levels=[0.5], colors='black', linewidths=0.7)


def print_rows(rows: list[dict], everything: dict[str, float], title: str, threshold: float) -> None:
    """Print the mean map of each layer, and its best head; of fixations the saliency alone."""
    cells, of_layers = [], {}
    for row in rows:
        of_layers.setdefault((row['model'], row['layer']), []).append(row)
    if not everything:
        cells = [(*place, f'{mean["nss"]:.3f}') for place, (mean, *_) in of_layers.items()]
        print_table(f'{title}, normalised scanpath saliency', ('model', 'layer', *SALIENCY.values()), cells)
        return
    for place, (mean, *heads) in of_layers.items():
        best = max(heads, key=lambda head: head['jaccard'])
        measures = (*(mean[key] for key in MEASURES), best['jaccard'], best['miou'])
        cells.append((*place, *(f'{100 * value:.1f}' for value in measures), best['head']))
    cells.append((EVERYTHING, '', *(f'{100 * everything[key]:.1f}' for key in MEASURES), '', '', ''))
    columns = ('model', 'layer', *MEASURES.values(), 'of best head', 'mIoU', 'head')
    print_table(f'{title}, attention above {threshold:g}; all in %', columns, cells)


if __name__ == '__main__':
    main()
