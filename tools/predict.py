#!/usr/bin/env python
"""Predict on images, folders, videos or a camera with a checkpoint or an exported ONNX model.

Writes a folder with an overlay of every image (PNG, of videos MP4) and with results for other programs: of
detectors predictions.json in COCO's format, with masks as run lengths; of segmentors index PNGs with the palette of
the classes. An image that cannot be used is named and left out, and the exit code is then 1.
"""

import argparse
import sys
import time
from pathlib import Path

import bioattn_mm.cli.threads  # noqa: F401

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from bioattn_mm.cli.command_line import CHECKPOINT_KINDS, ToolParser, run_tool
from bioattn_mm.cli.reports import check_new
from bioattn_mm.errors import InputError

FAILED, INTERRUPTED = 1, 130
CHECKPOINT_SUFFIXES = ('.pth', '.pt', '.safetensors', '.onnx')


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'predict.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth street.jpg holiday/',
        "predict.py configs/transnext/mask_rcnn_tiny_coco.py epoch_12.pth 'clips/*.mp4' --score-thr 0.5 --out found",
        'predict.py configs/transnext/upernet_tiny_ade20k.py exported/end2end.onnx street.jpg',
        'predict.py configs/transnext/upernet_tiny_ade20k.py --mini data/mini/ADEChallengeData2016/images/validation',
    )
    parser.add_config()
    parser.add_argument(
        'checkpoint',
        nargs='?',
        help=f'checkpoint of the whole model: {CHECKPOINT_KINDS}; or an ONNX file of tools/export.py; with --mini it '
        'can be left out: the newest one of the miniature run (make demo, tools/train.py --mini)',
    )
    parser.add_argument(
        'inputs',
        nargs='*',
        metavar='INPUT',
        help='images, folders of images with their subfolders, globs in quotes, videos, and numbers of cameras',
    )
    parser.add_argument(
        '--out',
        metavar='DIR',
        help='folder for the results; nothing is overwritten (default: predictions, predictions_2, ... beside the '
        'checkpoint)',
    )
    parser.add_argument(
        '--score-thr',
        type=float,
        default=0.3,
        metavar='SCORE',
        help='leave out detections with a lower score, in the overlays and in the JSON (default: %(default)s)',
    )
    parser.add_argument(
        '--classes', nargs='+', metavar='NAME', help='keep these classes alone (default: all that the model knows)'
    )
    parser.add_integer(
        '--batch-size',
        minimum=1,
        default=1,
        metavar='N',
        help='images that the model takes at once, where neighbours have the same size (default: 1)',
    )
    parser.add_integer(
        '--max-frames',
        minimum=1,
        metavar='N',
        help='end each video and camera after N frames (default: all of a video; of a camera until Ctrl-C)',
    )
    window = parser.add_mutually_exclusive_group()
    window.add_argument(
        '--slide',
        dest='mode',
        action='store_const',
        const='slide',
        help='segmentors: slide a window of the training size over the image (default: as the config says)',
    )
    window.add_argument(
        '--whole', dest='mode', action='store_const', const='whole', help='segmentors: take the whole image at once'
    )
    parser.add_argument(
        '--tta',
        action='store_true',
        help='multi-scale and flip testing, as the config defines it; of Mask R-CNN the boxes alone',
    )
    parser.add_argument(
        '--bias-mode',
        metavar='MODE',
        help='position bias of TransNeXt at sizes that it was not trained on: extrapolate, interpolate, or linear, '
        "which keeps the pooled grid of the training size (default: the config's)",
    )
    parser.add_amp()
    parser.add_config_options()
    parser.add_device()
    parser.set_defaults(device=None)  # an exported model runs where onnxruntime does
    args = parser.parse_intermixed_args()
    if args.mini and args.checkpoint and not args.checkpoint.endswith(CHECKPOINT_SUFFIXES):
        args.inputs.insert(0, args.checkpoint)
        args.checkpoint = None
    if args.checkpoint is None and not args.mini:
        raise InputError('no checkpoint: expected CONFIG CHECKPOINT INPUT..., or CONFIG INPUT... with --mini')
    if not args.inputs:
        raise InputError('nothing to predict on: name images, folders, globs, videos or a camera number')
    return args


class Speed(ProgressColumn):
    """Images per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f'{speed:.1f} images/s' if speed else '')


@run_tool
def main() -> None:
    args = parse_args()
    if args.out:
        check_new(args.out, '--out')
    # Importing mmdet and mmseg takes seconds.
    from bioattn_mm.inference import Predictor
    from bioattn_mm.inference.inputs import find_inputs
    from bioattn_mm.inference.results import Results

    images, videos = find_inputs(args.inputs, args.max_frames)
    predictor = Predictor(
        args.config,
        args.checkpoint,
        device=args.device,
        mini=args.mini,
        cfg_options=args.cfg_options,
        bias_mode=args.bias_mode,
        tta=args.tta,
        amp=args.amp,
        mode=args.mode,
    )
    check_classes(args.classes, predictor.classes)
    folder = Path(args.out) if args.out else default_folder(predictor.checkpoint)
    results = Results(folder, predictor, args.score_thr, args.classes)

    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), Speed(), TimeRemainingColumn())
    failures, interrupted, start = [], False, time.perf_counter()
    try:
        with Progress(*columns) as progress:
            if images:
                bar = progress.add_task('images', total=len(images))
                for prediction in predictor.iterate(images, args.batch_size):
                    if prediction.error is None:
                        results.add_image(prediction)
                    else:
                        failures.append((prediction.source, prediction.error))
                    progress.advance(bar)
            for video in videos:
                bar = progress.add_task(video.name, total=video.num_frames)
                with results.add_video(video) as frames:
                    for prediction in predictor.iterate(video, args.batch_size):
                        if prediction.error is not None:
                            failures.append((f'{video.source}, frame {frames.num_frames}', prediction.error))
                        frames.add_frame(prediction)
                        progress.advance(bar)
                progress.update(bar, total=frames.num_frames)
    except KeyboardInterrupt:
        interrupted = not any(video.is_camera for video in videos)  # which is how a camera ends
        print('interrupted: what was predicted so far is kept')
    finally:
        results.write()
    number, seconds = len(results.images), time.perf_counter() - start
    print(f'{number} image{"s" * (number != 1)}, {number / seconds:.2f} images/s; results in {folder}')
    if failures:
        print(f'{len(failures)} of {number + len(failures)} could not be used:', file=sys.stderr)
        for source, error in failures:
            print(f'  {source}: {error}', file=sys.stderr)
    if failures or interrupted:
        sys.exit(INTERRUPTED if interrupted else FAILED)


def check_classes(names: list[str] | None, known: tuple[str, ...]) -> None:
    """Raise an `InputError` for a class that the model does not know."""
    unknown = [name for name in names or () if name not in known]
    if unknown:
        known_names = ', '.join(known[:10]) + (', ...' if len(known) > 10 else '')
        raise InputError(f'the model has no class {unknown[0]!r}: it knows {len(known)}, {known_names}')


def default_folder(checkpoint: str) -> Path:
    """The first of predictions, predictions_2, ... beside the checkpoint that is not there yet."""
    parent = Path('.') if '://' in checkpoint else Path(checkpoint).parent
    number, folder = 1, parent / 'predictions'
    while folder.exists():
        number += 1
        folder = parent / f'predictions_{number}'
    return folder


if __name__ == '__main__':
    main()
