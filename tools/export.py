#!/usr/bin/env python
"""Export a checkpoint, to run it without this package: through mmdeploy, or through PyTorch's own torch.export.

mmdeploy exports detectors and segmentors to ONNX and TorchScript. torch.export takes classifiers, segmentors and the
backbones of all models as they are, for a .pt2 file, ONNX, OpenVINO or a compiled package of AOTInductor.
"""

import argparse
import copy
import logging
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import bioattn_mm.cli.threads  # noqa: F401

from mmengine.config import Config
from mmengine.registry import MODELS
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bioattn_mm.checkpoints import dataset_meta_of, read_checkpoint, weights_for, weights_of
from bioattn_mm.cli.classes import take_classes
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.config import load_config
from bioattn_mm.cli.installed import find_config
from bioattn_mm.cli.mini import ensure_mini_data, with_mini_test_data
from bioattn_mm.cli.model_check import model_of, state_dict_of
from bioattn_mm.cli.pipelines import name_host_transforms
from bioattn_mm.cli.reports import check_new, print_table
from bioattn_mm.errors import InputError
from bioattn_mm.runtime.arguments import AtLeast

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
        if args.to is None or args.deploy_cfg or args.verify:
            raise InputError('--via torch takes --to FORMAT, --size and --backbone, and no --deploy-cfg or --verify')
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
        'and speed; exit code 1 if the outputs of the file in float32 differ',
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
        type=float,
        metavar='POINTS',
        help='with --verify: exit code 1 if mIoU, PQ, or AP of boxes or masks of an exported file is lower than '
        'that of PyTorch by more than so many points of 100',
    )
    parser.add_argument(
        '--tolerance',
        type=float,
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


def export_via_torch(args: argparse.Namespace) -> None:
    """Export through torch.export."""
    from bioattn_mm.export.formats import check_packages, export

    out = check_new(args.out, '--out')
    check_packages(args.to)
    config = load_config(args.config, mini=args.mini, cfg_options=args.cfg_options)
    checkpoint = read_checkpoint(args.checkpoint)
    classes, palette = take_classes(config, dataset_meta_of(checkpoint), args.checkpoint)
    weights = weights_for(model_of(config), args.checkpoint, weights_of(args.checkpoint, checkpoint))
    config.model.pop('pretrained', None)
    model = MODELS.build(config.model)
    model.load_state_dict(weights, strict=False)
    with (
        TemporaryDirectory(dir=out.parent if out.parent.is_dir() else None) as folder,
        Progress(TextColumn('{task.description}'), BarColumn(), TimeElapsedColumn()) as progress,
    ):
        progress.add_task(f'trace and export to {args.to}', total=None)
        files = export(model.eval(), config, args.to, Path(folder), args.size, classes, palette, args.backbone)
        out.mkdir(parents=True, exist_ok=True)
        files = [Path(shutil.move(path, out / path.name)) for path in sorted(files[0].parent.iterdir())]
    for path in files:
        print(f'{path}  {path.stat().st_size / 2**20:.1f} MiB')


def export_via_mmdeploy(args: argparse.Namespace) -> None:
    """Export through mmdeploy, and compare."""
    # Not at the top: a missing package ends the tool in one line.
    from mmdeploy.utils import get_backend, get_root_logger

    from bioattn_mm.deploy.export import (
        check_kind,
        check_runtime,
        describe,
        export,
        inference_checkpoint,
        publish,
    )
    from bioattn_mm.deploy.verification import PYTORCH, Verification
    from bioattn_mm.export.quantization import find_images

    get_root_logger().setLevel(logging.ERROR)
    out = check_new(args.out, '--out')
    deploy_config = read_deploy_config(args.deploy_cfg)
    check_runtime(deploy_config)
    if (args.float16 or args.int8) and get_backend(deploy_config).value != 'onnxruntime':
        raise InputError('--float16 and --int8 write ONNX files: take a deploy config of onnxruntime')
    if args.int8:
        find_images(args.int8)  # before minutes of tracing
    config = load_config(args.config, mini=args.mini, cfg_options=args.cfg_options)
    check_kind(config, deploy_config)
    name_host_transforms(config)  # mmdeploy finds the loading transforms by their names
    if args.verify:
        config = with_mini_test_data(config)
        ensure_mini_data()
    read = read_checkpoint(args.checkpoint)
    classes, palette = take_classes(config, dataset_meta_of(read), args.checkpoint)
    described = copy.deepcopy(config)
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
        describe(described, out, Path(files[0]).name, classes, palette)
        progress.advance(exporting)
        exported = {Path(files[0]).stem: files}
        for path in smaller_files(args, Path(files[0]), progress):
            exported[path.stem] = [str(path)]
        if args.verify:
            verification = Verification(config, deploy_config, checkpoint, exported, args.verify_images)
            for _ in progress.track(verification.run(), total=len(verification), description='compare images'):
                pass
    sizes = {PYTORCH: size_of([str(checkpoint)]), **{name: size_of(paths) for name, paths in exported.items()}}
    print(f'{checkpoint}  {sizes[PYTORCH]:.1f} MiB')
    for name, paths in exported.items():
        print(f'{paths[0]}  {sizes[name]:.1f} MiB')
    if args.verify:
        report(verification, sizes, args.tolerance, args.max_drop)


def smaller_files(args: argparse.Namespace, path: Path, progress: Progress) -> list[Path]:
    """Write what `--float16` and `--int8` ask for, beside an exported file."""
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


def size_of(paths: list[str]) -> float:
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
    from bioattn_mm.deploy.verification import drops

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
