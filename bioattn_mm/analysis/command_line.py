"""Command lines of the analysis tools: a config, a checkpoint, pictures, and a folder for what comes out."""

import argparse
from pathlib import Path

import torch
from mmengine.config import Config, DictAction

from ..engine.run_config import load_config
from ..errors import InputError
from ..models.backbones.base import MIN_INPUT_SIZE


def parse(
    parser: argparse.ArgumentParser, max_pictures: int, size: tuple[int, int] | None = None
) -> argparse.Namespace:
    """Add the arguments of every analysis tool, and parse the command line.

    Args:
        parser: With the tool's own arguments.
        max_pictures: Default of `--max-pictures`.
        size: Default of `--size`, (height, width) in pixels; None leaves sizes to the config's test pipeline.

    Raises:
        InputError: A size or number that cannot be, or a device that is not there.
    """
    default_size = 'as the test pipeline of the config resizes them' if size is None else f'{size[0]} {size[1]}'
    parser.add_argument('config', help='config file, such as configs/transnext/upernet_tiny_ade20k.py')
    parser.add_argument(
        'checkpoint',
        nargs='?',
        help='checkpoint file of the whole model, of its backbone, or of ImageNet; default: the file that the config '
        'starts from where it is a local one, else random weights',
    )
    parser.add_argument('--out', required=True, metavar='DIR', help='folder for what comes out')
    parser.add_argument(
        '--pictures', metavar='DIR', help="folder of pictures; default: those that the config's dataset validates on"
    )
    parser.add_argument(
        '--max-pictures',
        type=int,
        default=max_pictures,
        metavar='N',
        help=f'take the first N pictures by name (default: {max_pictures})',
    )
    parser.add_argument(
        '--size',
        type=int,
        nargs=2,
        default=size,
        metavar=('HEIGHT', 'WIDTH'),
        help=f'resize pictures to this size in pixels, which need not be square (default: {default_size})',
    )
    parser.add_argument(
        '--mini', action='store_true', help='generated miniature pictures, and the sizes that go with them'
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='override config values, such as model.backbone.bias_mode=interpolate; applied after --mini',
    )
    parser.add_argument(
        '--device',
        default='cuda' if torch.cuda.is_available() else 'cpu',
        help='device to compute on, such as cpu or cuda:0 (default: the GPU where there is one)',
    )
    args = parser.parse_args()
    if args.size and min(args.size) < MIN_INPUT_SIZE:
        raise InputError(f'--size must be at least {MIN_INPUT_SIZE} pixels each way, got {min(args.size)}')
    if args.max_pictures < 1:
        raise InputError(f'--max-pictures must be at least 1, got {args.max_pictures}')
    try:
        torch.empty(0, device=args.device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f'--device {args.device} is not there: name another, such as cpu') from error
    return args


def read_config(args: argparse.Namespace, path: str | None = None) -> Config:
    """The config of the command line with its overrides, or another one, whose own pictures need not be there.

    Raises:
        InputError: It cannot be read, or its validation pictures are needed and not there.
    """
    dataloaders = () if args.pictures or path else ('val_dataloader',)
    args = argparse.Namespace(**{**vars(args), 'config': path or args.config}, launcher='none')
    return load_config(args, dataloaders)


def check_out(folder: str, files: tuple[str, ...]) -> Path:
    """The folder for what comes out, which must not hold what the tool writes.

    Args:
        folder: Its path; it need not be there yet.
        files: Names of the tool's files.

    Raises:
        InputError: It has one of them.
    """
    out = Path(folder)
    existing = [name for name in files if (out / name).exists()]
    if existing:
        raise InputError(f'{out / existing[0]} is there already: name another folder for --out')
    return out
