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
    parser.add_argument(
        '--verify',
        action='store_true',
        help='run the exported model and PyTorch on the same miniature images; exit code 1 if their outputs differ',
    )
    parser.add_integer(
        '--verify-images',
        minimum=1,
        default=NUM_IMAGES,
        metavar='N',
        help='number of images that --verify takes, spread over the 40 of the miniature data; of a large model at '
        'full size each may take a quarter of a minute (default: %(default)s)',
    )
    parser.add_argument(
        '--tolerance',
        type=float,
        default=1e-3,
        help='largest difference that --verify allows: for segmentation of scores; for detection of scores, '
        "boxes (as fractions of the image's longer side) and masks (as fractions of its pixels); default: "
        '%(default)s',
    )
    parser.add_config_options()
    args = parser.parse_args()
    if args.via == 'torch':
        if args.to is None or args.deploy_cfg or args.verify:
            raise InputError('--via torch takes --to FORMAT, --size and --backbone, and no --deploy-cfg or --verify')
    elif args.deploy_cfg is None or args.to or args.size or args.backbone:
        raise InputError('--via mmdeploy takes --deploy-cfg FILE, and no --to, --size or --backbone')
    return args


def height_and_width(text: str) -> tuple[int, int]:
    """Read a size such as 512x512."""
    parts = text.split('x')
    if len(parts) != 2 or not all(part.isdecimal() and int(part) >= 32 for part in parts):
        raise argparse.ArgumentTypeError(
            f'expected HEIGHTxWIDTH of at least 32 pixels, such as 512x512, got {text!r}'
        )
    return int(parts[0]), int(parts[1])


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
    from mmdeploy.utils import get_root_logger

    from bioattn_mm.deploy.export import (
        check_kind,
        check_runtime,
        describe,
        export,
        inference_checkpoint,
        publish,
    )
    from bioattn_mm.deploy.verification import Verification

    get_root_logger().setLevel(logging.ERROR)
    out = check_new(args.out, '--out')
    deploy_config = read_deploy_config(args.deploy_cfg)
    check_runtime(deploy_config)
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
        if args.verify:
            verification = Verification(config, deploy_config, checkpoint, files, args.verify_images)
            for _ in progress.track(verification.run(), total=len(verification), description='compare images'):
                pass
    for path in (checkpoint, *files):
        print(f'{path}  {Path(path).stat().st_size / 2**20:.1f} MiB')
    if args.verify:
        title = f'metrics on {len(verification)} of {verification.num_available} miniature images'
        report(title, verification.difference, verification.metrics(), args.tolerance)


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


def report(title: str, difference: float, metrics: dict[str, tuple[float, float]], tolerance: float) -> None:
    """Print the metrics of both, and end the tool if the outputs differ by more than the tolerance."""
    rows = ((name, *(f'{value:.4f}' for value in values)) for name, values in metrics.items())
    print_table(title, ('', 'PyTorch', 'exported'), rows)
    print(f'largest difference of the outputs: {difference:.2e}')
    if not difference <= tolerance:
        print(f'error: the outputs differ by more than the tolerance of {tolerance:g}', file=sys.stderr)
        sys.exit(DIFFERENT)


if __name__ == '__main__':
    main()
