"""Arguments of the command line that `tools/predict.py` has for every kind of model."""

import argparse
import math
from collections.abc import Callable

from ..errors import InputError
from .formats import FORMATS


class AtLeast(argparse.Action):
    """Stores an int or several, and refuses those below `minimum`."""

    def __init__(self, *args, minimum: int, **kwargs) -> None:
        super().__init__(*args, type=int, **kwargs)
        self.minimum = minimum

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        smallest = min(values) if isinstance(values, list) else values
        if smallest < self.minimum:
            raise InputError(f'{option_string} must be at least {self.minimum}, got {smallest}')
        setattr(namespace, self.dest, values)


def number_to(maximum: float) -> Callable[[str], float]:
    """The type of an argument that is a number from 0 to a maximum, and not NaN."""

    def number(text: str) -> float:
        value = float(text)
        if not 0 <= value <= maximum:
            limits = 'of at least 0' if math.isinf(maximum) else f'from 0 to {maximum:g}'
            raise argparse.ArgumentTypeError(f'expected a number {limits}, got {text}')
        return value

    return number


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add what to predict on."""
    parser.add_argument(
        'inputs',
        nargs='*',
        metavar='INPUT',
        help='image, folder with images and subfolders, glob in quotes, video, or number of a camera',
    )


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add what to write and how many images to take."""
    parser.add_argument(
        '--out',
        metavar='DIR',
        help='folder for the results; nothing is overwritten (default: predictions, predictions_2, ... beside the '
        'model)',
    )
    parser.add_argument(
        '--score-thr',
        type=number_to(1),
        default=0.3,
        metavar='SCORE',
        help='drop detections with a lower score, from overlays and JSON (default: %(default)s)',
    )
    parser.add_argument(
        '--format',
        nargs='+',
        dest='formats',
        choices=FORMATS,
        metavar='FORMAT',
        help='detectors: what to write beside the overlays: coco, a JSON file (the default), yolo, a text file for '
        'each image, or both',
    )
    parser.add_argument(
        '--classes', nargs='+', metavar='NAME', help='keep only these classes (default: all that the model knows)'
    )
    parser.add_argument(
        '--batch-size',
        action=AtLeast,
        minimum=1,
        default=1,
        metavar='N',
        help='images of one size, or windows of a segmentor, to compute at once (default: 1)',
    )
    parser.add_argument(
        '--max-frames',
        action=AtLeast,
        minimum=1,
        metavar='N',
        help='stop each video and camera after N frames (default: at the end of a video; Ctrl-C stops a camera)',
    )


def add_mode(parser: argparse.ArgumentParser, default: str) -> None:
    """Add `--slide` and `--whole`."""
    window = parser.add_mutually_exclusive_group()
    window.add_argument(
        '--slide',
        dest='mode',
        action='store_const',
        const='slide',
        help=f'segmentors: slide a window of the training size over the image (default: {default})',
    )
    window.add_argument(
        '--whole', dest='mode', action='store_const', const='whole', help='segmentors: take the whole image at once'
    )
