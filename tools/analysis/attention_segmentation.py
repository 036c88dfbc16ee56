#!/usr/bin/env python
"""How well attention alone finds the objects of images: where it is strong as a segmentation, against masks.

Section 4.3 and table 4 of VARS (Shi et al., ICML 2022). For each layer and image: how much attention every token
gets, the mean over all queries (of VARS how strongly it is reconstructed), stretched to 0 to 1; tokens above 0.3
(--threshold) are taken for the objects, and compared with the foreground by mIoU, false positives and false
negatives, and by the Jaccard index of the foreground alone. Of the heads the mean map counts, and beside it the best
head of the layer, as in DINO (Caron et al., 2021). What taking everything for foreground would give is printed, too.

Masks are those of a config's validation images, of a segmentor or a detector (--classes chooses what is foreground),
or label maps in a folder (--masks, --split), where 0 is background and 255 does not count.

With --fixations, in the layout of MIT1003, the maps are compared with where people look instead, by normalised
scanpath saliency (VARS, table 5).
"""

import argparse

import bioattn_mm.process_settings  # noqa: F401

import mmcv
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from mmengine.config import Config
from rich.progress import track

from bioattn_mm.analysis.attention_segmentation import (
    Sample,
    above_threshold,
    attention_received,
    read_dataset,
    read_fixations,
    read_masks,
    scanpath_saliency,
    scores,
    to_file,
)
from bioattn_mm.analysis.heat import draw_heat
from bioattn_mm.analysis.images import ImageReader
from bioattn_mm.analysis.models import Source, build_backbone, read_sources
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.reports import Report, print_table
from bioattn_mm.errors import InputError
from bioattn_mm.layers import record_attention
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
    parser.add_argument(
        '--layer',
        type=int,
        nargs='+',
        metavar='N',
        help='numbers of the attention layers, from 0; negative numbers count from the end (default: all)',
    )
    parser.add_argument(
        '--threshold',
        type=number_to(1),
        default=0.3,
        metavar='PART',
        help='from 0, the least attention of an image, to 1, the most: what lies above is taken for the objects '
        '(default: 0.3)',
    )
    parser.add_argument(
        '--classes',
        nargs='+',
        metavar='NAME',
        help="names of the config's classes that are foreground (default: all but 'background')",
    )
    parser.add_argument('--masks', metavar='DIR', help='folder of label maps, PNG, named as the images of --images')
    parser.add_argument(
        '--fixations', metavar='DIR', help='folder of NAME_fixPts.jpg for each image of --images, as MIT1003 has it'
    )
    parser.add_argument('--split', metavar='FILE', help='names of the images of --images that count, one a line')
    parser.add_integer(
        '--queries',
        minimum=1,
        default=256,
        metavar='N',
        help='queries that attention is averaged over (default: 256)',
    )
    parser.add_backbone_arguments(', '.join(FILES), max_images=100)
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    if not 0 <= args.threshold < 1:
        raise InputError(f'--threshold must be at least 0 and below 1, got {args.threshold:g}')
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
    best = next(iter(measures))

    weights, rows, drawn = {}, [], []
    for source in sources:
        weights[source.name], of_model, maps = measure(source, samples, args)
        rows += of_model
        drawn += maps
    everything = {}
    if not args.fixations:
        everything = means([scores(np.ones_like(sample.foreground), sample) for sample in samples])

    report.write_csv(FILES[0], rows)
    document = dict(weights=weights, images=len(samples), threshold=args.threshold, everything=everything, heads=rows)
    report.write_json(FILES[1], document)
    report.write_figure(FILES[2], draw(samples[:NUM_DRAWN], best_layers(drawn, rows, best), measures))
    title = f'{len(samples)} images'
    if args.fixations:
        cells = [(row['model'], row['layer'], f'{row["nss"]:.3f}') for row in rows if row['head'] == MEAN]
        print_table(f'{title}, normalised scanpath saliency', ('model', 'layer', *measures.values()), cells)
    else:
        print_rows(rows, everything, f'{title}, attention above {args.threshold:g}')
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


def measure(source: Source, samples: list[Sample], args: argparse.Namespace) -> tuple[str, list[dict], list[tuple]]:
    """Compare the attention of a model with the samples.

    Returns:
        What its weights are; a row for each layer and head, and for their mean; and what may be drawn: model, layer,
        number of the image, map, what is chosen of it, and its measures.

    Raises:
        InputError: The model has no attention that can be looked into, or a mask is of another size than its image.
    """
    backbone, weights = build_backbone(source.config, source.checkpoint, args.device, size=args.size)
    reader = ImageReader(source.config, args.size, args.device)
    found, drawn = {}, []
    for number, sample in enumerate(track(samples, description=source.name)):
        image = reader(sample.image)
        if image.original_size != sample.foreground.shape:
            sizes = ('{1} x {0}'.format(*size) for size in (sample.foreground.shape, image.original_size))
            raise InputError('the mask of {} has {} pixels, the image {}'.format(sample.image, *sizes))
        recordings = record_attention(backbone, image.inputs)
        if not recordings:
            raise InputError(f'{source.name} has no attention layer that can be looked into')
        for layer in layers_of(args.layer, len(recordings)):
            received = attention_received(recordings[layer], args.queries)
            maps = {MEAN: received.mean(0), **dict(enumerate(received))}
            for head, values in maps.items():
                chosen = to_file(above_threshold(values, args.threshold).astype(np.uint8), image, values.shape)
                if args.fixations:
                    pixels = to_file(values, image, values.shape)
                    of_image = dict(nss=scanpath_saliency(pixels, sample.foreground))
                else:
                    of_image = scores(chosen.astype(bool), sample)
                found.setdefault((layer, recordings[layer].name, head), []).append(of_image)
                if head == MEAN and number < NUM_DRAWN:
                    map_ = to_file(values, image, values.shape)
                    drawn.append((source.name, layer, number, map_, chosen, of_image))
    rows = [
        dict(model=source.name, layer=layer, name=name, head=head, **means(of_images))
        for (layer, name, head), of_images in found.items()
    ]
    return weights, rows, drawn


def layers_of(asked: list[int] | None, number: int) -> list[int]:
    """The numbers of the layers, from 0."""
    for layer in asked or ():
        if not -number <= layer < number:
            raise InputError(f'--layer must be {-number} to {number - 1} in this model, got {layer}')
    return [layer % number for layer in asked] if asked else list(range(number))


def means(of_images: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each measure over the images."""
    return {key: float(np.nanmean([values[key] for values in of_images])) for key in of_images[0]}


def best_layers(drawn: list[tuple], rows: list[dict], measure: str) -> dict[str, list[tuple]]:
    """What is to be drawn of each model: the maps of the layer whose mean map is the best by a measure."""
    best = {}
    for row in rows:
        if row['head'] == MEAN and row[measure] > best.get(row['model'], (-np.inf, 0))[0]:
            best[row['model']] = row[measure], row['layer']
    return {
        f'{model}, layer {layer}': [entry for entry in drawn if entry[:2] == (model, layer)]
        for model, (_, layer) in best.items()
    }


def draw(samples: list[Sample], models: dict[str, list[tuple]], measures: dict[str, str]) -> Figure:
    """Draw a line for each image: its mask, and the maps of the models with the outline of what they choose.

    Of fixations (`measures` is `SALIENCY`) the points, and the maps alone.
    """
    measure, name_of_measure = next(iter(measures.items()))
    columns = 1 + len(models)
    figure = Figure(figsize=(2.6 * columns, 2.3 * len(samples)), layout='constrained')
    axes = figure.subplots(len(samples), columns, squeeze=False)
    for number, sample in enumerate(samples):
        picture = mmcv.imread(str(sample.image), channel_order='rgb')
        axis = axes[number, 0]
        axis.imshow(picture)
        if measures is SALIENCY:
            axis.scatter(*np.nonzero(sample.foreground)[::-1], s=2, color='red')
        else:
            outline(axis, sample.foreground)
        axis.set_title(f'image and {"fixations" if measures is SALIENCY else "mask"}, in pixels', fontsize=7)
        axis.tick_params(labelsize=6)
        for axis, (name, entries) in zip(axes[number, 1:], models.items()):
            _, _, _, values, chosen, of_image = entries[number]
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


def print_rows(rows: list[dict], everything: dict[str, float], title: str) -> None:
    """Print the mean map of each layer, and its best head."""
    cells = []
    for row in rows:
        if row['head'] != MEAN:
            continue
        heads = [
            other
            for other in rows
            if (other['model'], other['layer']) == (row['model'], row['layer']) and other['head'] != MEAN
        ]
        best = max(heads, key=lambda head: head['jaccard'])
        measures = (*(row[key] for key in MEASURES), best['jaccard'], best['miou'])
        values = (f'{100 * value:.1f}' for value in measures)
        cells.append((row['model'], row['layer'], *values, best['head']))
    cells.append((EVERYTHING, '', *(f'{100 * everything[key]:.1f}' for key in MEASURES), '', '', ''))
    columns = ('model', 'layer', *MEASURES.values(), 'of best head', 'mIoU', 'head')
    print_table(f'{title}; all in %', columns, cells)


if __name__ == '__main__':
    main()
