#!/usr/bin/env python
"""Predict on images, folders, videos or a camera with a checkpoint or an exported ONNX model.

An exported model replaces config and checkpoint, and runs without PyTorch from its pipeline.json: MODEL.onnx --help
lists its options.

You get a folder with overlays (PNG, or MP4 for videos) and files for other programs: from a detector predictions.json
in COCO's format with masks as run lengths, or what --format says; from a segmentor label maps as PNG, with the
palette of the classes; from a classifier the scores in predictions.json. An image that cannot be used is named and
skipped; the exit code is then 1.
"""

import argparse
import sys
from pathlib import Path

import bioattn_mm.cli.threads_and_memory  # noqa: F401

from bioattn_mm.errors import InputError
from bioattn_mm.runtime import command
from bioattn_mm.runtime.arguments import add_inputs, add_mode, add_results
from bioattn_mm.runtime.files import check_new
from bioattn_mm.runtime.paths import find_inputs

CHECKPOINT_SUFFIXES = ('.pth', '.pt', '.safetensors', command.SUFFIX)


def parse_args() -> argparse.Namespace:
    if command.takes(sys.argv[1:]):
        return command.parse_args()
    from bioattn_mm.cli.command_line import ToolParser

    parser = ToolParser(
        __doc__,
        'predict.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth street.jpg holiday/',
        "predict.py configs/transnext/mask_rcnn_tiny_coco.py epoch_12.pth 'clips/*.mp4' --score-thr 0.5 --out found",
        'predict.py configs/transnext/mask_rcnn_tiny_coco.py epoch_12.pth street.jpg --format coco yolo',
        'predict.py exported/end2end.onnx street.jpg',
        'predict.py configs/transnext/upernet_tiny_ade20k.py --mini data/mini/ADEChallengeData2016/images/validation',
    )
    parser.add_model()
    add_inputs(parser)
    add_results(parser)
    add_mode(parser, 'as the config says')
    parser.add_argument(
        '--tta',
        action='store_true',
        help='multi-scale and flip testing, as the config defines it; of Mask R-CNN only the boxes',
    )
    parser.add_shared('--bias-mode', '--amp')
    parser.add_config_options()
    parser.add_shared('--device')
    args = parser.parse_intermixed_args()
    if args.config.endswith(command.SUFFIX):
        raise InputError(f'{args.config} is an exported model: name it before all options')
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
    """Predict with PyTorch."""
    args = parse_args()
    if args.out:
        check_new(args.out, '--out')
    from bioattn_mm.cli.command_line import model_options

    # Importing mmdet and mmseg takes seconds.
    from bioattn_mm.inference import Predictor
    from bioattn_mm.inference.results import Results

    images, videos = find_inputs(args.inputs, args.max_frames)
    predictor = Predictor(args.config, args.checkpoint, **model_options(args), tta=args.tta, mode=args.mode)
    command.check_classes(args.classes, predictor.classes)
    folder = Path(args.out) if args.out else command.default_folder(predictor.checkpoint)
    results = Results(folder, predictor, args.score_thr, args.classes, args.formats)
    command.predict_all(predictor, images, videos, results, args.batch_size)


if __name__ == '__main__':
    main()
