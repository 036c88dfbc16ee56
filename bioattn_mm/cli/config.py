"""The config of a run, as the command line asks for it."""

import argparse
from pathlib import Path

from mmengine.config import Config

from ..errors import InputError
from .bias_mode import set_bias_mode
from .command_line import check_data, merge_options, read_config
from .launcher import prepare_process
from .mini import ensure_mini_data, make_mini
from .pipelines import name_bad_files


def load_config(
    args: argparse.Namespace, dataloaders: tuple[str, ...], bias_mode: str | None = None, tta: bool = False
) -> Config:
    """Read `args.config` and change it in this order: miniature, multi-scale testing, position bias, other values.

    What the command line says wins over what the config has for multi-scale testing.

    Last, the process joins the others of its launcher if there is no GPU (see `prepare_process`).

    Args:
        args: What `command_line.parse` returned; of it `config`, `mini`, `cfg_options` and `launcher`.
        dataloaders: The dataloaders that the run needs, such as 'test_dataloader'; their data must be there.
        bias_mode: One of `BIAS_MODES`.
        tta: Take over the config's `tta_overrides`, what differs in multi-scale and flip testing.

    Raises:
        InputError: The config cannot be run, has no miniature, no multi-scale testing or no position bias, its data
            are not there, or the launcher and the machine do not fit.
    """
    config = read_config(args.config)
    name_bad_files(config)
    if args.mini:
        config = make_mini(config)
        ensure_mini_data()
    if tta:
        absent = [key for key in ('tta_model', 'tta_pipeline') if key not in config]
        if absent:
            raise InputError(f'--tta needs {" and ".join(absent)} in the config, and this one has none')
        config.merge_from_dict(config.get('tta_overrides', {}))
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
