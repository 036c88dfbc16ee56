#!/usr/bin/env python
"""Export a checkpoint, to run it without this package: through mmdeploy, or through PyTorch's own torch.export.

mmdeploy exports detectors and segmentors to ONNX and TorchScript. torch.export takes classifiers, segmentors and the
backbones of all models as they are, for a .pt2 file, ONNX, OpenVINO or a compiled package of AOTInductor.
"""

import argparse
import logging
import math
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import bioattn_mm.process_settings  # noqa: F401

from mmengine.config import Config
from mmengine.registry import MODELS
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bioattn_mm.checkpoints import dataset_meta_of, read_checkpoint, weights_for, weights_of
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.reports import print_table
from bioattn_mm.errors import InputError
from bioattn_mm.files import check_new
from bioattn_mm.run_config.classes import classes_of, take_classes
from bioattn_mm.run_config.config import load_config
from bioattn_mm.run_config.installed import find_config
from bioattn_mm.run_config.mini import ensure_mini_data, with_mini_test_data
from bioattn_mm.run_config.model_check import model_of, state_dict_of
from bioattn_mm.run_config.pipelines import image_kind, name_host_loading
from bioattn_mm.runtime.arguments import AtLeast, number_to

DIFFERENT = 1
NUM_IMAGES = 5


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'export.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth '
        '--deploy-cfg configs/deploy/segmentation_onnxruntime_dynamic.py --out exported --verify',
        'export.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth --via torch --to onnx --size 512x512 '
        '--out exported',
    )
    parser.add_config()
    parser.add_checkpoint()
    parser.add_argument(
        '--via',
        choices=('mmdeploy', 'torch'),
        default='mmdeploy',
        help='what exports: mmdeploy, as --deploy-cfg says, or torch.export (default: %(default)s)',
    )
    parser.add_argument(
        '--deploy-cfg', metavar='FILE', help='--via mmdeploy: its config file, such as those in configs/deploy'
    )
    group = parser.add_argument_group('--via torch')
    group.add_argument(
        '--to',
        choices=('pt2', 'onnx', 'aoti', 'openvino'),
        help='what is written: an exported program of PyTorch, ONNX, a package of AOTInductor, or OpenVINO',
    )
    group.add_argument(
        '--size',
        type=height_and_width,
        metavar='HxW',
        help='take images of this size alone, in pixels, one at a time: the fastest file (default: any size and '
        'batch, in ONNX and OpenVINO multiples of 32)',
    )
    group.add_argument('--backbone', action='store_true', help='export the backbone alone, of any model')
    parser.add_out('the exported model')
    add_verification(parser)
    add_smaller(parser)
    parser.add_config_options()
    args = parser.parse_args()
    if args.via == 'torch':
        if args.to is None or args.deploy_cfg:
            raise InputError('--via torch takes --to FORMAT, --size and --backbone, and no --deploy-cfg')
        if args.to != 'onnx' and (args.float16 or args.int8):
            raise InputError('--float16 and --int8 write ONNX files: take --to onnx')
        if args.int8 and args.backbone:
            raise InputError('--int8 is for whole models: calibrate without --backbone')
    elif args.deploy_cfg is None or args.to or args.size or args.backbone:
        raise InputError('--via mmdeploy takes --deploy-cfg FILE, and no --to, --size or --backbone')
    if args.max_drop is not None and not args.verify:
        raise InputError('--max-drop bounds what --verify measures: add --verify')
    return args


def height_and_width(text: str) -> tuple[int, int]:
    """Read a size such as 512x512."""
    parts = text.split('x')
    if len(parts) != 2 or not all(part.isdecimal() and int(part) >= 32 for part in parts):
        raise argparse.ArgumentTypeError(
            f'expected HEIGHTxWIDTH of at least 32 pixels, such as 512x512, got {text!r}'
        )
    return int(parts[0]), int(parts[1])


def add_smaller(parser: ToolParser) -> None:
    """Add the options of smaller files."""
    group = parser.add_argument_group('smaller ONNX files, beside the one of float32')
    group.add_argument(
        '--float16',
        action='store_true',
        help='also write a file whose weights are float16; it computes in float32, from half the size',
    )
    group.add_argument(
        '--int8',
        metavar='FOLDER',
        help='also write a file that computes convolutions and products with weights in int8, with the ranges of '
        'activations found on the images in this folder; attention, its softmax and log-CPB stay in float32',
    )


def add_verification(parser: ToolParser) -> None:
    """Add the options of the comparison with PyTorch."""
    parser.add_argument(
        '--verify',
        action='store_true',
        help='run every exported file and PyTorch on the same miniature images and print metric, difference, size '
        'and speed; exit code 1 if the outputs of the file in float32 differ (--via torch: of segmentors)',
    )
    number = parser.add_mutually_exclusive_group()
    number.add_argument(
        '--verify-images',
        action=AtLeast,
        minimum=1,
        default=NUM_IMAGES,
        metavar='N',
        help='number of images that --verify takes, spread over the miniature data; at full size an image takes '
        'seconds for each file and for PyTorch (default: %(default)s)',
    )
    number.add_argument(
        '--all',
        dest='verify_images',
        action='store_const',
        const=sys.maxsize,
        help='--verify takes all 40 of the miniature images',
    )
    parser.add_argument(
        '--max-drop',
        type=number_to(math.inf),
        metavar='POINTS',
        help='with --verify: exit code 1 if mIoU, PQ, or AP of boxes or masks of an exported file is lower than '
        'that of PyTorch by more than so many points of 100',
    )
    parser.add_argument(
        '--tolerance',
        type=number_to(math.inf),
        default=1e-3,
        help='largest difference that --verify allows: for segmentation of scores; for detection of scores, '
        "boxes (as fractions of the image's longer side) and masks (as fractions of its pixels); default: "
        '%(default)s',
    )


@run_tool
def main() -> None:
    args = parse_args()
    if args.via == 'torch':
        export_via_torch(args)
    else:
        export_via_mmdeploy(args)


def read_model(args: argparse.Namespace, config: Config) -> tuple[dict, tuple[str, ...], list[tuple[int, int, int]]]:
    """Read the checkpoint, and set its classes in the config.

    Returns:
        The checkpoint, and names and colours of its classes.

    Raises:
        InputError: There is none, or its classes are not those of the images that `--verify` takes.
    """
    checkpoint, (own_classes, _) = read_checkpoint(args.checkpoint), classes_of(config)
    classes, palette = take_classes(config, dataset_meta_of(args.checkpoint, checkpoint), args.checkpoint)
    if args.verify and classes != own_classes:
        raise InputError(
            f'--verify takes miniature images with the {len(own_classes)} classes of {config.filename}, and '
            f'{args.checkpoint} has {len(classes)} others: leave it out'
        )
    return checkpoint, classes, palette


def export_via_torch(args: argparse.Namespace) -> None:
    """Export through torch.export, and compare."""
    from bioattn_mm.export.formats import check_packages, export
    from bioattn_mm.export.verification import PYTORCH, verification_of_segmentor

    out = check_new(args.out, '--out')
    check_packages(args.to)
    check_images(args)
    config = load_config(args.config, mini=args.mini, cfg_options=args.cfg_options)
    if args.verify and (args.backbone or config.default_scope != 'mmseg'):
        raise InputError(
            '--via torch --verify is for segmentors; every file is compared with its model on noise anyway'
        )
    config = with_test_images(args, config)
    checkpoint, classes, palette = read_model(args, config)
    weights = weights_for(model_of(config), args.checkpoint, weights_of(args.checkpoint, checkpoint))
    config.model.pop('pretrained', None)
    model = MODELS.build(config.model)
    model.load_state_dict(weights, strict=False)
    with (
        TemporaryDirectory(dir=out.parent if out.parent.is_dir() else None) as folder,
        Progress(TextColumn('{task.description}'), BarColumn(), TimeElapsedColumn()) as progress,
    ):
        progress.add_task(f'trace and export to {args.to}', total=None)
        path, _ = export(model.eval(), config, args.to, Path(folder), args.size, classes, palette, args.backbone)
        exported = [path, *smaller_files(args, path, progress)]
        out.mkdir(parents=True, exist_ok=True)
        files = [Path(shutil.move(path, out / path.name)) for path in sorted(Path(folder).iterdir())]
        if args.verify:
            exported = [out / path.name for path in exported]
            verification = verification_of_segmentor(config, model, exported, args.size, args.verify_images)
            run_all(verification, progress)
    for path in files:
        print(f'{path}  {size_of([path]):.1f} MiB')
    if args.verify:
        sizes = {PYTORCH: sum(value.nbytes for value in weights.values()) / 2**20}
        # OpenVINO's are two files, of one stem.
        sizes.update({path.stem: size_of(out.glob(f'{path.stem}.*')) for path in exported})
        report(verification, sizes, args.tolerance, args.max_drop)


def export_via_mmdeploy(args: argparse.Namespace) -> None:
    """Export through mmdeploy, and compare."""
    # Not at the top: a missing package ends the tool in one line.
    from mmdeploy.utils import get_backend, get_root_logger

    from bioattn_mm.export.verification import PYTORCH
    from bioattn_mm.mmdeploy_rewriters.export import (
        check_kind,
        check_runtime,
        describe,
        description_of,
        export,
        has_panoptic_head,
        inference_checkpoint,
        publish,
        verification_of,
    )

    get_root_logger().setLevel(logging.ERROR)
    out = check_new(args.out, '--out')
    deploy_config = read_deploy_config(args.deploy_cfg)
    check_runtime(deploy_config)
    if (args.float16 or args.int8) and get_backend(deploy_config).value != 'onnxruntime':
        raise InputError('--float16 and --int8 write ONNX files: take a deploy config of onnxruntime')
    check_images(args)
    config = load_config(args.config, mini=args.mini, cfg_options=args.cfg_options)
    check_kind(config, deploy_config)
    if args.int8 and has_panoptic_head(config):
        raise InputError(f'--int8 is for segmentors and detectors with boxes, and {config.filename} is neither')
    config = with_test_images(args, config)
    read, classes, palette = read_model(args, config)
    description = description_of(config, classes, palette)  # refuses a pipeline before minutes of tracing
    name_host_loading(config)
    if config.model.get('test_cfg', {}).get('mode') == 'slide':
        # The network alone: bioattn_mm.runtime slides the window, as pipeline.json says; mmdeploy's runner does not.
        config.model.test_cfg.mode = 'whole'
    weights = inference_checkpoint(args.checkpoint, read, state_dict_of(config))

    out.mkdir(parents=True, exist_ok=True)
    checkpoint = publish(weights, out, Path(args.config).stem)
    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as progress:
        exporting = progress.add_task('trace and export', total=1)
        files = export(config, deploy_config, checkpoint, out)
        describe(description, out, Path(files[0]).name)
        progress.advance(exporting)
        exported = {Path(files[0]).stem: files}
        for path in smaller_files(args, Path(files[0]), progress):
            exported[path.stem] = [str(path)]
        if args.verify:
            verification = verification_of(config, deploy_config, checkpoint, exported, args.verify_images)
            run_all(verification, progress)
    sizes = {PYTORCH: size_of([str(checkpoint)]), **{name: size_of(paths) for name, paths in exported.items()}}
    print(f'{checkpoint}  {sizes[PYTORCH]:.1f} MiB')
    for name, paths in exported.items():
        print(f'{paths[0]}  {sizes[name]:.1f} MiB')
    if args.verify:
        report(verification, sizes, args.tolerance, args.max_drop)


def check_images(args: argparse.Namespace) -> None:
    """Raise an `InputError` if there are no images for `--int8`, before minutes of tracing."""
    if args.int8:
        from bioattn_mm.export.quantization import find_images

        find_images(args.int8)


def with_test_images(args: argparse.Namespace, config: Config) -> Config:
    """A config whose test reads the miniature images if `--verify` takes them."""
    if args.verify:
        if kind := image_kind(config):
            raise InputError(f'--verify takes miniature images, RGB in 8 bits, and this model {kind}: leave it out')
        config = with_mini_test_data(config)
        ensure_mini_data()
    return config


def smaller_files(args: argparse.Namespace, path: Path, progress: Progress) -> list[Path]:
    """Write what `--float16` and `--int8` ask for, beside an exported file."""
    if not (args.float16 or args.int8):
        return []
    from bioattn_mm.export.quantization import to_float16, to_int8

    found = []
    if args.float16:
        found.append(to_float16(path))
    if args.int8:
        calibrating = progress.add_task('calibrate int8', total=1)
        smaller, number = to_int8(path, args.int8)
        found.append(smaller)
        progress.update(calibrating, advance=1, description=f'calibrate int8, {number} images')
    return found


def run_all(verification: object, progress: Progress) -> None:
    """Run all models on all images."""
    for _ in progress.track(verification.run(), total=len(verification), description='compare images'):
        pass


def size_of(paths: Iterable[str | Path]) -> float:
    """MiB of some files."""
    return sum(Path(path).stat().st_size for path in paths) / 2**20


def read_deploy_config(path: str) -> Config:
    """Read a config of mmdeploy.

    Raises:
        InputError: The file does not exist, or is no such config.
    """
    path = find_config(path)
    if not Path(path).is_file():
        raise InputError(f'deploy config not found: {path}')
    config = Config.fromfile(path)
    absent = [key for key in ('ir_config', 'backend_config', 'codebase_config') if key not in config]
    if absent:
        raise InputError(f'{path} is no deploy config of mmdeploy: it has no {", ".join(absent)}')
    return config


def report(verification: object, sizes: dict[str, float], tolerance: float, max_drop: float | None) -> None:
    """Print what was measured of every model, and end the tool if a bound is exceeded."""
    from bioattn_mm.export.verification import drops

    metrics = verification.metrics()
    rows = [(metric, *(f'{value:.4f}' for value in values.values())) for metric, values in metrics.items()]
    differences = verification.differences
    rows.append(('largest difference', '', *(f'{value:.2e}' for value in differences.values())))
    rows.append(('MiB', *(f'{size:.1f}' for size in sizes.values())))
    rows.append(('seconds an image', *(f'{seconds:.3f}' for seconds in verification.seconds.values())))
    title = f'{len(verification)} of {verification.num_available} miniature images'
    print_table(title, ('', *verification.models), rows)
    first = next(iter(differences))  # the others are rounded on purpose
    print(f'largest difference of the outputs: {differences[first]:.2e}')
    failures = []
    if not differences[first] <= tolerance:
        failures.append(f'the outputs differ by more than the tolerance of {tolerance:g}')
    for name, drop in drops(metrics).items() if max_drop is not None else ():
        if drop > max_drop:
            failures.append(f'{name} is {drop:.2f} points below PyTorch, more than --max-drop {max_drop:g}')
    for failure in failures:
        print(f'error: {failure}', file=sys.stderr)
    if failures:
        sys.exit(DIFFERENT)


if __name__ == '__main__':
    main()
