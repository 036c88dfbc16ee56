"""Predict on images, folders, videos or a camera with an exported model, without PyTorch.

The model needs its pipeline.json, which tools/export.py writes beside it. Writes a folder with an overlay of every
image (PNG, of videos MP4) and with results for other programs: of detectors predictions.json in COCO's format, of
segmentors index PNGs with the palette of the classes. An image that cannot be used is named and left out; the exit
code is then 1.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

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

from ..errors import InputError
from .arguments import AtLeast, add_inputs, add_mode, add_results
from .backends import BACKENDS
from .files import check_new
from .model import SUFFIX, Model
from .paths import find_inputs
from .results import Results
from .videos import Video

FAILED, USAGE, INTERRUPTED = 1, 2, 130


def takes(arguments: Sequence[str]) -> bool:
    """Whether a command line, without the name of the program, begins with an exported model."""
    return bool(arguments) and arguments[0].endswith(SUFFIX)


def main() -> None:
    """The command; an `InputError` or `OSError` is printed as one line, and the exit code is 2."""
    try:
        run(parse_args())
    except (InputError, OSError) as error:
        print(f'error: {(str(error).splitlines() or [""])[0]}', file=sys.stderr)
        sys.exit(USAGE)


def parse_args() -> argparse.Namespace:
    """The arguments of the command."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='Example:\n  %(prog)s exported/end2end.onnx street.jpg holiday/ --backend openvino --out found',
    )
    parser.add_argument('model', metavar='MODEL', help='exported ONNX file')
    add_inputs(parser)
    parser.add_argument(
        '--backend', choices=tuple(BACKENDS), default='onnxruntime', help='what computes (default: %(default)s)'
    )
    parser.add_argument(
        '--bfloat16',
        action='store_true',
        help='--backend openvino: compute in bfloat16, faster on CPUs that have it and less exact (default: float32)',
    )
    parser.add_argument(
        '--threads',
        action=AtLeast,
        minimum=1,
        metavar='N',
        help='threads to compute with (default: as many as there are cores)',
    )
    add_results(parser)
    add_mode(parser, 'as exported')
    args = parser.parse_intermixed_args()
    if not args.inputs:
        raise InputError('nothing to predict on: name images, folders, globs, videos or a camera number')
    return args


def run(args: argparse.Namespace) -> None:
    """Predict as the arguments say."""
    if args.out:
        check_new(args.out, '--out')
    images, videos = find_inputs(args.inputs, args.max_frames)
    model = Model(args.model, args.backend, mode=args.mode, num_threads=args.threads, bfloat16=args.bfloat16)
    check_classes(args.classes, model.classes)
    folder = Path(args.out) if args.out else default_folder(args.model)
    results = Results(folder, model, args.score_thr, args.classes, args.formats)
    predict_all(model, images, videos, results, args.batch_size)


class Speed(ProgressColumn):
    """Images per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f'{speed:.1f} images/s' if speed else '')


def predict_all(
    predictor: object, images: Sequence[Path], videos: Sequence[Video], results: Results, batch_size: int
) -> None:
    """Predict on images and videos and write the results, with a progress bar; ends the program if some failed.

    Args:
        predictor: What predicts, with an `iterate` such as that of `Model`.
        images: Files.
        videos: Videos and cameras.
        results: Where to write.
        batch_size: Of `iterate`.
    """
    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), Speed(), TimeRemainingColumn())
    failures, interrupted, start = [], False, time.perf_counter()
    try:
        with Progress(*columns) as progress:
            if images:
                bar = progress.add_task('images', total=len(images))
                for prediction in predictor.iterate(images, batch_size):
                    if prediction.error is None:
                        results.add_image(prediction)
                    else:
                        failures.append((prediction.source, prediction.error))
                    progress.advance(bar)
            for video in videos:
                bar = progress.add_task(video.name, total=video.num_frames)
                # Models of other images than RGB in 8 bits take their channels in the order of files, R, G and B.
                images_of_video = video if predictor.kind is None else (frame[..., ::-1].copy() for frame in video)
                # The file of the video is complete when this is closed.
                with closing(results.add_video(video, predictor.iterate(images_of_video, batch_size))) as frames:
                    for number, prediction in enumerate(frames):
                        if prediction.error is not None:
                            failures.append((f'{video.source}, frame {number}', prediction.error))
                        progress.advance(bar)
                progress.update(bar, total=number + 1)
    except KeyboardInterrupt:
        interrupted = not any(video.is_camera for video in videos)  # Ctrl+C is how a camera ends
        print('interrupted: what was predicted so far is kept')
    finally:
        results.write()
    number, seconds = len(results.images), time.perf_counter() - start
    objects = f'{results.num_objects} objects of score {results.score_thr:g} or more, '
    found = f'{number} image{"s" * (number != 1)}, {objects if predictor.task == "detection" else ""}'
    print(f'{found}{number / seconds:.2f} images/s; results in {results.folder}')
    if failures:
        print(f'{len(failures)} of {number + len(failures)} could not be used:', file=sys.stderr)
        for source, error in failures:
            print(f'  {source}: {error}', file=sys.stderr)
    if failures or interrupted:
        sys.exit(INTERRUPTED if interrupted else FAILED)


def check_classes(names: Sequence[str] | None, known: Sequence[str]) -> None:
    """Raise an `InputError` for a class that the model does not know."""
    unknown = [name for name in names or () if name not in known]
    if unknown:
        known_names = ', '.join(known[:10]) + (', ...' if len(known) > 10 else '')
        raise InputError(f'the model has no class {unknown[0]!r}: it knows {len(known)}, {known_names}')


def default_folder(model: str) -> Path:
    """The first of predictions, predictions_2, ... beside the file of a model that is not there yet."""
    parent = Path('.') if '://' in model else Path(model).parent
    names = itertools.chain(['predictions'], (f'predictions_{number}' for number in itertools.count(2)))
    return next(parent / name for name in names if not (parent / name).exists())
