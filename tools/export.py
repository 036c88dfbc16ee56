#!/usr/bin/env python
"""Export a checkpoint of an mmdet or mmseg config through mmdeploy, to run it without PyTorch."""

import argparse
import logging
import sys
from pathlib import Path

import bioattn_mm.cli.threads  # noqa: F401

from mmengine.config import Config
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.cli.config import load_config
from bioattn_mm.cli.installed import find_config
from bioattn_mm.cli.mini import ensure_mini_data, with_mini_test_data
from bioattn_mm.cli.model_check import state_dict_of
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
    )
    parser.add_config()
    parser.add_checkpoint()
    parser.add_argument(
        '--deploy-cfg', required=True, metavar='FILE', help='config file of mmdeploy, such as those in configs/deploy'
    )
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
    return parser.parse_args()


@run_tool
def main() -> None:
    args = parse_args()
    # Not at the top: a missing package ends the tool in one line.
    from mmdeploy.utils import get_root_logger

    from bioattn_mm.deploy.export import check_kind, check_runtime, export, inference_checkpoint, publish
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
    if config.model.get('test_cfg', {}).get('mode') == 'slide':
        print('The exported model takes whole images, although this config slides a window over them.')
        config.model.test_cfg = dict(mode='whole')
    weights = inference_checkpoint(args.checkpoint, state_dict_of(config))

    out.mkdir(parents=True, exist_ok=True)
    checkpoint = publish(weights, out, Path(args.config).stem)
    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as progress:
        exporting = progress.add_task('trace and export', total=1)
        files = export(config, deploy_config, checkpoint, out)
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
