"""The config of a run, as the command line asks for it."""

import argparse

from mmengine.config import Config

from .bias_mode import set_bias_mode
from .command_line import check_data, read_config
from .distributed import prepare_process
from .mini import ensure_mini_data, make_mini


def load_config(
    args: argparse.Namespace, dataloaders: tuple[str, ...], bias_mode: str | None = None, tta: bool = False
) -> Config:
    """Read `args.config`, make it miniature, apply its `tta_overrides`, set its position bias, override its values.

    In this order, so that what the command line says wins over what the config has for multi-scale testing.

    Last, the process joins the others of its launcher if there is no GPU (see `prepare_process`).

    Args:
        args: What `command_line.parse` returned; of it `config`, `mini`, `cfg_options` and `launcher`.
        dataloaders: The dataloaders that the run needs, such as 'test_dataloader'; their data must be there.
        bias_mode: One of `BIAS_MODES`.
        tta: Apply the `tta_overrides` of the config, its settings for multi-scale testing.

    Raises:
        InputError: The config cannot be run, has no miniature or no position bias, its data are not there, or
            the launcher and the machine do not fit.
    """
    config = read_config(args.config)
    if args.mini:
        config = make_mini(config)
        ensure_mini_data()
    if tta:
        config.merge_from_dict(config.get('tta_overrides', {}))
    if bias_mode:
        set_bias_mode(config, bias_mode)
    config.merge_from_dict(args.cfg_options or {})
    check_data(config, dataloaders)
    prepare_process(config, args.launcher)
    return config
