"""What the tools share: reading configs, checking what they point to, one-line errors."""

import argparse
import functools
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from mmengine.config import Config, ConfigDict, DictAction
from mmengine.utils import is_seq_of

from ..checkpoints.unpickling import HOLDS_CODE, code_refused, refused_class, trust_checkpoints
from ..errors import InputError

HOW_TO_GET = dict(
    ADE20KDataset='download ADEChallengeData2016.zip of the MIT Scene Parsing Benchmark '
    '(http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip) and unpack it into data/ade',
    CocoDataset='download the 2017 train and val images and annotations from https://cocodataset.org/#download '
    'and unpack them into data/coco',
)


def run_tool(main: Callable[[], None]) -> Callable[[], None]:
    """Decorate a tool's `main`: bad input, or a file system that refuses, ends it with one line and exit code 2.

    Whatever reads a checkpoint inside, mmengine's Runner included, refuses code in it (see `unpickling`).
    """

    @functools.wraps(main)
    def run() -> None:
        try:
            with code_refused():
                main()
        except pickle.UnpicklingError as error:  # of a checkpoint that a library reads by itself
            print(f'error: a checkpoint {HOLDS_CODE.format(refused_class(error))}', file=sys.stderr)
            sys.exit(2)
        except (InputError, OSError) as error:
            # An error of a data loader's worker arrives with the worker's traceback in its message; its last
            # line is "module.ErrorClass: message".
            line = str(error).strip().splitlines()[-1]
            line = re.sub(r'^([\w.]+\.)?\w*Error: ', '', line)
            print(f'error: {line}', file=sys.stderr)
            sys.exit(2)

    return run


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Add the arguments of every tool that runs a config, and parse the command line."""
    parser.add_argument(
        '--mini',
        action='store_true',
        help='generated miniature data, images and crops of a quarter of the size; training is 200 iterations of 2 '
        'images from random weights, with a fixed seed: minutes on a 2-core CPU',
    )
    add_cfg_options(parser)
    add_trust_checkpoint(parser)
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
        help='job launcher (default: none)',
    )
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help='set by the pytorch launcher')
    args = parser.parse_args()
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    return args


class ConfigOptions(DictAction):
    """mmengine's `KEY=VALUE ...`, with an error of one line for what is no such thing."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        for value in values:
            key, equals, text = value.partition('=')
            if not key or not equals:
                raise argparse.ArgumentError(self, f'expected KEY=VALUE, got {value!r}')
            if '{' in text:
                raise argparse.ArgumentError(
                    self, f'a dict is no value, got {value!r}: set its entries one by one, {key}.NAME=VALUE'
                )
            if any(text.count(left) != text.count(right) for left, right in ('()', '[]')):
                raise argparse.ArgumentError(self, f'brackets that do not match in {value!r}')
        super().__call__(parser, namespace, values, option_string)


def add_cfg_options(parser: argparse.ArgumentParser) -> None:
    """Add `--cfg-options`."""
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=ConfigOptions,
        metavar='KEY=VALUE',
        help='override config values, such as model.backbone.bias_mode=interpolate; applied after --mini',
    )


class TrustCheckpoint(argparse.Action):
    """Lets checkpoints run code as soon as the option is met."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        trust_checkpoints()


def add_trust_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add `--trust-checkpoint`."""
    parser.add_argument(
        '--trust-checkpoint',
        action=TrustCheckpoint,
        nargs=0,
        help='read checkpoints that hold other classes than those that mmengine writes; such a file can run any '
        'program when it is read, so use this only for files from a source that you trust',
    )


def merge_options(config: Config, options: dict[str, object] | None) -> None:
    """Override values of a config with those of `--cfg-options`.

    Args:
        config: Changed in place.
        options: Values by key, with dots between the keys of nested dicts and the indices of lists.

    Raises:
        InputError: A key leads through something that is no dict or list, an index is none, or a whole dict would be
            replaced by a single value.
    """
    for key, value in (options or {}).items():
        old = config
        try:
            for name in key.split('.'):
                old = old[int(name)] if isinstance(old, (list, tuple)) else old.get(name)
                if old is None:
                    break
            replaces_dict = isinstance(old, dict) and value is not None
            if not replaces_dict:
                config.merge_from_dict({key: value})
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise InputError(f'--cfg-options {key}={value} leads nowhere in this config: {error}') from error
        if replaces_dict:
            raise InputError(
                f'--cfg-options {key}={value} would replace a dict with the entries {", ".join(old)}: set one of '
                f'them, {key}.NAME=VALUE'
            )


def read_config(path: str) -> Config:
    """Read a config file.

    Raises:
        InputError: The file is missing, is no config, or lacks the parts of a runnable one.
    """
    if not Path(path).is_file():
        raise InputError(f'config not found: {path}')
    if Path(path).suffix not in ('.py', '.yaml', '.yml', '.json'):
        raise InputError(f'{path} is no config: expected a .py, .yaml or .json file')
    try:
        config = Config.fromfile(path)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise InputError(f'cannot read the config {path}: {reason}') from error
    absent = [key for key in ('model', 'default_scope', 'test_dataloader', 'test_evaluator') if key not in config]
    if absent:
        raise InputError(f'{path} is no config of a model that can be run: it has no {", ".join(absent)}')
    return config


def find_datasets(node: object) -> Iterator[ConfigDict]:
    """The dataset configs with a `data_root` anywhere inside a dataloader's config (wrappers are looked through)."""
    if isinstance(node, dict):
        if 'data_root' in node:
            yield node
        for value in node.values():
            yield from find_datasets(value)
    elif is_seq_of(node, dict):
        for value in node:
            yield from find_datasets(value)


def check_data(config: Config, dataloaders: tuple[str, ...]) -> None:
    """Raise an `InputError` that names the first data folder or annotation file that is not there."""
    for dataloader in dataloaders:
        for dataset in find_datasets(config.get(dataloader)):
            root = Path(dataset['data_root'])
            parts = [part for part in dataset.get('data_prefix', {}).values() if isinstance(part, str)]
            parts += [dataset['ann_file']] if dataset.get('ann_file') else []
            for path in [root] + [root / part for part in parts]:
                if not path.exists():
                    how = HOW_TO_GET.get(dataset['type'], 'set data_root with --cfg-options')
                    raise InputError(
                        f'no data for {dataset["type"]} at {path} (looked for from {Path.cwd()}); {how}; '
                        f'or train without it, on generated miniature data: --mini'
                    )
