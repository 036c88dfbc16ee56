#!/usr/bin/env python
"""Predict on images, folders, videos or a camera with a checkpoint or an exported ONNX model.

An exported model that stands first, in the place of a config, runs by its pipeline.json, without PyTorch:
MODEL.onnx --help has the options for it.

Writes a folder with an overlay of every image (PNG, of videos MP4) and with results for other programs: of
detectors predictions.json in COCO's format, with masks as run lengths, or what --format says; of segmentors index
PNGs with the palette of the classes; of classifiers the scores in predictions.json. An image that cannot be used is
named and left out, and the exit code is then 1.
"""

import argparse
import sys
from pathlib import Path

import bioattn_mm.process_settings  # noqa: F401

from bioattn_mm.errors import InputError
from bioattn_mm.files import check_new
from bioattn_mm.runtime import command
from bioattn_mm.runtime.arguments import add_inputs, add_mode, add_results
from bioattn_mm.runtime.inputs import find_inputs

CHECKPOINT_SUFFIXES = ('.pth', '.pt', '.safetensors', '.onnx')


def parse_args() -> argparse.Namespace:
    if command.takes(sys.argv[1:]):
        return command.parse_args()
    from bioattn_mm.cli.command_line import CHECKPOINT_KINDS, ToolParser

    parser = ToolParser(
        __doc__,
        'predict.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth street.jpg holiday/',
        "predict.py configs/transnext/mask_rcnn_tiny_coco.py epoch_12.pth 'clips/*.mp4' --score-thr 0.5 --out found",
        'predict.py configs/transnext/mask_rcnn_tiny_coco.py epoch_12.pth street.jpg --format coco yolo voc',
        'predict.py exported/end2end.onnx street.jpg',
        'predict.py configs/transnext/upernet_tiny_ade20k.py --mini data/mini/ADEChallengeData2016/images/validation',
    )
    parser.add_config()
    parser.add_argument(
        'checkpoint',
        nargs='?',
        help=f'checkpoint of the whole model: {CHECKPOINT_KINDS}; or an ONNX file of tools/export.py; with --mini it '
        'can be left out: the newest one of the miniature run (make demo, tools/train.py --mini)',
    )
    add_inputs(parser)
    add_results(parser)
    add_mode(parser, 'as the config says')
    parser.add_integer(
        '--tile',
        minimum=32,
        nargs='?',
        const=640,
        metavar='SIDE',
        help='detectors: predict on overlapping tiles of SIDE x SIDE pixels (%(const)s without a value) and on the '
        'whole image, and merge what is found: for small objects in large images',
    )
    parser.add_argument(
        '--tile-overlap',
        type=float,
        default=0.2,
        metavar='PART',
        help='part of a tile that the next one covers, too: as large as the largest of the small objects (default: '
        '%(default)s)',
    )
    parser.add_argument(
        '--tta',
        action='store_true',
        help='multi-scale and flip testing, as the config defines it; of Mask R-CNN the boxes alone',
    )
    parser.add_bias_mode()
    parser.add_amp()
    parser.add_config_options()
    parser.add_device()
    parser.set_defaults(device=None)  # an exported model runs where onnxruntime does
    args = parser.parse_intermixed_args()
    if args.config.endswith(command.SUFFIXES):
        raise InputError(f'{args.config} is an exported model: name it before all options, or its config before it')
    if args.mini and args.checkpoint and not args.checkpoint.endswith(CHECKPOINT_SUFFIXES):
        args.inputs.insert(0, args.checkpoint)
        args.checkpoint = None
    if args.checkpoint is None and not args.mini:
        raise InputError('no checkpoint: expected CONFIG CHECKPOINT INPUT..., or CONFIG INPUT... with --mini')
    if not args.inputs:
        raise InputError('nothing to predict on: name images, folders, globs, videos or a camera number')
    return args


def main() -> None:
    if command.takes(sys.argv[1:]):
        command.main()
    else:
        # Not at the top: an exported model needs no PyTorch.
        from bioattn_mm.cli.command_line import run_tool

        run_tool(predict)()


def predict() -> None:
    """Predict with PyTorch, or with an exported model in mmdeploy's runtime, by a config."""
    args = parse_args()
    if args.out:
        check_new(args.out, '--out')
    # Importing mmdet and mmseg takes seconds.
    from bioattn_mm.inference import Predictor
    from bioattn_mm.inference.results import Results
    from bioattn_mm.inference.tiles import Tiling

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
        run_lengths=args.score_thr,
        tiling=None if args.tile is None else Tiling(args.tile, args.tile_overlap),
    )
    command.check_classes(args.classes, predictor.classes)
    folder = Path(args.out) if args.out else command.default_folder(predictor.checkpoint)
    results = Results(folder, predictor, args.score_thr, args.classes, args.formats, args.save_conf)
    command.predict_all(predictor, images, videos, results, args.batch_size)


if __name__ == '__main__':
    main()
