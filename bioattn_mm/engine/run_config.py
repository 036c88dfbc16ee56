"""The config of a run, as the command line asks for it."""

import argparse
from pathlib import Path

from mmengine.config import Config

from .bias_mode import set_bias_mode
from .command_line import check_data, merge_options, read_config
from .distributed import prepare_process
from .mini import ensure_mini_data, make_mini
from .pipelines import name_bad_files


def load_config(args: argparse.Namespace, dataloaders: tuple[str, ...], bias_mode: str | None = None) -> Config:
    """Read `args.config`, make it miniature, set its position bias and override its values, in this order.

    Last, the process joins the others of its launcher if there is no GPU (see `prepare_process`).

    Args:
        args: What `command_line.parse` returned; of it `config`, `mini`, `cfg_options` and `launcher`.
        dataloaders: The dataloaders that the run needs, such as 'test_dataloader'; their data must be there.
        bias_mode: One of `BIAS_MODES`.

    Raises:
        InputError: The config cannot be run, has no miniature or no position bias, its data are not there, or
            the launcher and the machine do not fit.
    """
    config = read_config(args.config)
    name_bad_files(config)
    if args.mini:
        config = make_mini(config)
        ensure_mini_data()
    if bias_mode:
        set_bias_mode(config, bias_mode)
    merge_options(config, args.cfg_options)
    check_data(config, dataloaders)
    prepare_process(config, args.launcher)
    return config


def default_work_dir(config_path: str, mini: bool) -> str:
    """Where a run writes by default: `work_dirs`, and below it the place of the config below `configs`.

    Configs of different systems share file names. A config that lies elsewhere gives its file name alone.
    """
    path = Path(config_path).resolve().with_suffix('')
    parts = path.parts
    place = '/'.join(parts[len(parts) - parts[::-1].index('configs') :]) if 'configs' in parts else path.name
    return f'work_dirs/{place}' + ('_mini' if mini else '')
