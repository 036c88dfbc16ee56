#!/usr/bin/env python
"""Export a checkpoint to run it without this package, through mmdeploy or torch.export.

mmdeploy exports detectors and segmentors to ONNX and TorchScript. torch.export takes classifiers, segmentors and the
backbones of all models as they are, to ONNX or a .pt2 file.
"""

import argparse
import logging
import math
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import bioattn_mm.cli.threads_and_memory  # noqa: F401

from mmengine.config import Config
from mmengine.registry import MODELS
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from bioattn_mm.checkpoints import dataset_meta_of, read_checkpoint, weights_for, weights_of
from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.reports import print_table
from bioattn_mm.errors import InputError
from bioattn_mm.runtime.arguments import number_to
from bioattn_mm.runtime.files import check_new
from bioattn_mm.training.config.classes import classes_of, take_classes
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.mini import ensure_mini_data, with_mini_test_data
from bioattn_mm.training.config.model_check import model_of
from bioattn_mm.training.config.pipelines import image_kind

DIFFERENT = 1
NUM_IMAGES = 5
COLUMNS = (
    TextColumn('{task.description}'),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)


def parse_args() -> argparse.Namespace:
    parser = ToolParser(
        __doc__,
        'export.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth '
        '--deploy-cfg configs/deploy/segmentation_onnxruntime_dynamic.py --out exported --verify',
        'export.py configs/transnext/upernet_tiny_ade20k.py iter_160000.pth --via torch --to onnx --size 512x512 '
        '--out exported',
    )
    parser.add_shared('config', 'checkpoint')
    parser.add_argument(
        '--via',
        choices=('mmdeploy', 'torch'),
        default='mmdeploy',
        help='export through mmdeploy, as --deploy-cfg says, or through torch.export (default: %(default)s)',
    )
    parser.add_argument(
        '--deploy-cfg', metavar='FILE', help='--via mmdeploy: its config file, such as those in configs/deploy'
    )
    parser.add_argument(
        '--to', choices=('pt2', 'onnx'), help='--via torch: write an exported program of PyTorch, or ONNX'
    )
    parser.add_argument(
        '--size',
        type=height_and_width,
        metavar='HxW',
        help='--via torch: fix the input to one image of this size, for the fastest file (default: any size and '
        'batch; in ONNX multiples of 32)',
    )
    parser.add_argument('--backbone', action='store_true', help='--via torch: export only the backbone')
    parser.add_out('the exported model')
    parser.add_argument(
        '--verify',
        action='store_true',
        help='compare the exported files with PyTorch on miniature images: difference, size and speed; exit code 1 '
        'if float32 outputs differ',
    )
    parser.add_integer(
        '--verify-images',
        minimum=1,
        default=NUM_IMAGES,
        metavar='N',
        help='how many of the 40 miniature images --verify takes (default: %(default)s)',
    )
    parser.add_argument(
        '--tolerance',
        type=number_to(math.inf),
        default=1e-3,
        help='largest difference that --verify allows: in scores, and in boxes and masks as fractions of the image',
    )
    parser.add_argument(
        '--int8',
        metavar='FOLDER',
        help='write an ONNX file with convolutions and products in int8, too, calibrated on the images in FOLDER; '
        'attention stays in float32',
    )
    parser.add_config_options()
    args = parser.parse_args()
    if args.via == 'torch':
        if args.to is None or args.deploy_cfg:
            raise InputError('--via torch takes --to FORMAT, --size and --backbone, and no --deploy-cfg')
        if args.to != 'onnx' and args.int8:
            raise InputError('--int8 writes an ONNX file: take --to onnx')
        if args.int8 and args.backbone:
            raise InputError('--int8 is for whole models: calibrate without --backbone')
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
    out = check_new(args.out, '--out')
    exporter = ViaTorch(args) if args.via == 'torch' else ViaMmdeploy(args)
    if args.int8:
        from bioattn_mm.export.quantization import find_images, to_int8

        find_images(args.int8)
    config = load_config(args.config, mini=args.mini, cfg_options=args.cfg_options)
    exporter.check(config)
    if args.verify:
        if kind := image_kind(config):
            raise InputError(f'--verify takes miniature images, RGB in 8 bits, and this model {kind}: leave it out')
        config = with_mini_test_data(config)
        ensure_mini_data(config, ['test_dataloader'])
    checkpoint, own_classes = read_checkpoint(args.checkpoint), classes_of(config)[0]
    meta = dataset_meta_of(checkpoint)
    classes, palette = take_classes(config, meta, args.checkpoint)
    if args.verify and classes != own_classes:
        raise InputError(
            f'--verify takes miniature images with the {len(own_classes)} classes of {config.filename}, and '
            f'{args.checkpoint} has {len(classes)} others: leave it out'
        )
    model = model_of(config)
    weights = weights_for(model, args.checkpoint, weights_of(args.checkpoint, checkpoint))
    weights = {name: weights[name] for name in model.state_dict()}

    with Progress(*COLUMNS) as progress:
        exporting = progress.add_task('trace and export', total=1)
        files = exporter.export(config, weights, meta, out, classes=classes, palette=palette)
        progress.advance(exporting)
        exported = {files[0].stem: files}
        if args.int8:
            calibrating = progress.add_task('calibrate int8', total=1)
            smaller, number = to_int8(files[0], args.int8)
            progress.update(calibrating, advance=1, description=f'calibrate int8, {number} images')
            exported[smaller.stem] = [smaller]
        if args.verify:
            verification = exporter.verification(exported)
            for _ in progress.track(verification.run(), total=len(verification), description='compare images'):
                pass
    for path in sorted(out.iterdir()):
        print(f'{path}  {mebibytes([path]):.1f} MiB')
    if args.verify:
        of_weights = sum(value.nbytes for value in weights.values()) / 2**20
        report(args, verification, (of_weights, *map(mebibytes, exported.values())))


class ViaTorch:
    """Export through torch.export."""

    def __init__(self, args: argparse.Namespace) -> None:
        from bioattn_mm.export.formats import check_packages

        self.args = args
        check_packages(args.to)

    def check(self, config: Config) -> None:
        """Raise an `InputError` if the model of a config cannot be compared."""
        if self.args.verify and (self.args.backbone or config.default_scope != 'mmseg'):
            raise InputError(
                '--via torch --verify is for segmentors; every file is compared with its model on noise anyway'
            )

    def export(
        self, config: Config, weights: dict[str, Tensor], meta: dict, out: Path, **labels: object
    ) -> list[Path]:
        """Write the files of a model into a new folder, once all of them are right; the first is the model's."""
        from bioattn_mm.export.formats import export

        config.model.pop('pretrained', None)
        self.config, self.model = config, MODELS.build(config.model).eval()
        self.model.load_state_dict(weights, strict=False)
        args = self.args
        with TemporaryDirectory(dir=out.parent if out.parent.is_dir() else None) as folder:
            model, _ = export(self.model, config, args.to, Path(folder), args.size, backbone=args.backbone, **labels)
            out.mkdir(parents=True, exist_ok=True)
            for path in Path(folder).iterdir():
                shutil.move(path, out / path.name)
        return [out / model.name]

    def verification(self, exported: dict[str, list[Path]]) -> object:
        """The comparison of exported files with the model."""
        from bioattn_mm.export.verification import verification_of_segmentor

        files = [path for (path,) in exported.values()]
        return verification_of_segmentor(self.config, self.model, files, self.args.size, self.args.verify_images)


class ViaMmdeploy:
    """Export through mmdeploy, with the methods of `ViaTorch`."""

    def __init__(self, args: argparse.Namespace) -> None:
        # Not at the top: a missing package ends the tool in one line.
        from mmdeploy.utils import get_backend, get_root_logger

        from bioattn_mm.export.mmdeploy import conversion

        self.args, self.conversion = args, conversion
        get_root_logger().setLevel(logging.ERROR)
        self.deploy_config = conversion.read_deploy_config(args.deploy_cfg)
        if args.int8 and get_backend(self.deploy_config).value != 'onnxruntime':
            raise InputError('--int8 writes an ONNX file: take a deploy config of onnxruntime')

    def check(self, config: Config) -> None:
        """Raise an `InputError` if the model of a config is not what the deploy config or an option is for."""
        self.conversion.check_kind(config, self.deploy_config)
        if self.args.int8 and self.conversion.has_panoptic_head(config):
            raise InputError(f'--int8 is for segmentors and detectors with boxes, and {config.filename} is neither')

    def export(
        self, config: Config, weights: dict[str, Tensor], meta: dict, out: Path, **labels: object
    ) -> list[Path]:
        """Write the files of a model into a new folder; returns those that the runtime loads."""
        self.config = config
        files, self.checkpoint = self.conversion.export(config, self.deploy_config, weights, meta, out, **labels)
        return files

    def verification(self, exported: dict[str, list[Path]]) -> object:
        """The comparison of exported files with the model."""
        return self.conversion.verification_of(
            self.config, self.deploy_config, self.checkpoint, exported, self.args.verify_images
        )


def mebibytes(paths: Iterable[Path]) -> float:
    """MiB of some files."""
    return sum(path.stat().st_size for path in paths) / 2**20


def report(args: argparse.Namespace, verification: object, sizes: Iterable[float]) -> None:
    """Print what was measured of every model and its size in MiB, and end the tool if the outputs differ."""
    differences = verification.differences
    rows = [
        ('largest difference', '', *(f'{value:.2e}' for value in differences.values())),
        ('MiB', *(f'{size:.1f}' for size in sizes)),
        ('seconds an image', *(f'{seconds:.3f}' for seconds in verification.seconds.values())),
    ]
    title = f'{len(verification)} of {verification.num_available} miniature images'
    print_table(title, ('', *verification.models), rows)
    first = next(iter(differences.values()))  # the other is rounded on purpose
    print(f'largest difference of the outputs: {first:.2e}')
    if not first <= args.tolerance:
        print(f'error: the outputs differ by more than the tolerance of {args.tolerance:g}', file=sys.stderr)
        sys.exit(DIFFERENT)


if __name__ == '__main__':
    main()
