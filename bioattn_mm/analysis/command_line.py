"""Command lines of the analysis tools: a config, a checkpoint, images, and a folder for what comes out."""

import argparse
from collections.abc import Collection
from pathlib import Path

import torch
from mmengine.config import Config

from ..cli.command_line import add_cfg_options, add_trust_checkpoint
from ..cli.config import load_config
from ..errors import InputError
from ..models.backbones.base import MIN_INPUT_SIZE


def parse(
    parser: argparse.ArgumentParser, max_images: int, size: tuple[int, int] | None = None
) -> argparse.Namespace:
    """Add the arguments of every analysis tool, and parse the command line.

    Args:
        parser: With the tool's own arguments.
        max_images: Default of `--max-images`.
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
    add_out(parser)
    parser.add_argument(
        '--images', metavar='DIR', help="folder of images; default: those that the config's dataset validates on"
    )
    parser.add_argument(
        '--max-images',
        type=int,
        default=max_images,
        metavar='N',
        help=f'take the first N images by name (default: {max_images})',
    )
    parser.add_argument(
        '--size',
        type=int,
        nargs=2,
        default=size,
        metavar=('HEIGHT', 'WIDTH'),
        help=f'resize images to this size in pixels, which need not be square (default: {default_size})',
    )
    add_config_options(parser)
    add_device(parser)
    args = parser.parse_args()
    check_size(args.size)
    if args.max_images < 1:
        raise InputError(f'--max-images must be at least 1, got {args.max_images}')
    check_device(args.device)
    return args


def add_out(parser: argparse.ArgumentParser) -> None:
    """Add `--out`."""
    parser.add_argument('--out', required=True, metavar='DIR', help='folder for what comes out')


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add what changes a config: `--mini` and `--cfg-options`."""
    parser.add_argument(
        '--mini', action='store_true', help='generated miniature images, and the sizes that go with them'
    )
    add_cfg_options(parser)
    add_trust_checkpoint(parser)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add `--device`."""
    parser.add_argument(
        '--device',
        default='cuda' if torch.cuda.is_available() else 'cpu',
        help='device to compute on, such as cpu or cuda:0 (default: the GPU where there is one)',
    )


def check_size(size: tuple[int, int] | None) -> None:
    """Raise an `InputError` unless the backbones take images of this (height, width) in pixels."""
    if size and min(size) < MIN_INPUT_SIZE:
        raise InputError(f'--size must be at least {MIN_INPUT_SIZE} pixels each way, got {min(size)}')


def check_device(device: str) -> None:
    """Raise an `InputError` unless PyTorch can compute on a device."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f'--device {device} is not there: name another, such as cpu') from error


def read_config(args: argparse.Namespace, path: str | None = None) -> Config:
    """The config of the command line with its overrides, or another one, whose own images need not be there.

    Raises:
        InputError: It cannot be read, or its validation images are needed and not there.
    """
    return config_of(args, path or args.config, () if args.images or path else ('val_dataloader',))


def config_of(args: argparse.Namespace, path: str, dataloaders: tuple[str, ...] = ()) -> Config:
    """A config with the overrides of the command line.

    Args:
        args: With `mini` and `cfg_options`.
        path: Its file.
        dataloaders: The dataloaders whose data must be there.

    Raises:
        InputError: As `load_config`.
    """
    return load_config(argparse.Namespace(**{**vars(args), 'config': path}, launcher='none'), dataloaders)


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


def name_of(path: str, taken: Collection[str]) -> str:
    """Name of a config: the file's; with its folder where that is taken; numbered where that is, too."""
    name, folder = Path(path).stem, Path(path).resolve().parent.name
    if name not in taken:
        return name
    name = f'{folder}/{name}'
    number = sum(other == name or other.startswith(f'{name} (') for other in taken)
    return f'{name} ({number + 1})' if number else name
