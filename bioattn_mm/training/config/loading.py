"""From the name of a config to the config of a run: `load_config` has all changes, in their order."""

import copy
from pathlib import Path

from mmengine.config import Config

from ...data.formats.arguments import DataArguments
from ...errors import InputError
from ...registry import MODELS
from ..installed import find_config, similar_configs
from .backbone import RECIPES, fit_to_backbone, use_backbone
from .data_check import check_data
from .distributed import prepare_process, rank_and_size
from .mini import MINI_ROOT, ensure_mini_data, make_mini
from .options import check_name, check_num_classes, check_optimizer, expect_weights, merge_options
from .own_data import use_own_data
from .samples import weigh_classes
from .schedule import set_epochs, set_scratch_rate, start_from_scratch
from .shards import use_shards
from .testing import merge_tta_overrides, set_test_set

LEARNING_RATE = 'optim_wrapper.optimizer.lr'
# The weights of `--balance-classes` stand here: merging the options again, as `--epochs` does, would undo them.
NOT_OF_SCHEDULE = 'model.'


def load_config(
    path: str | Path | Config,
    *,
    data: DataArguments | None = None,
    mini: bool = False,
    epochs: int | None = None,
    from_scratch: bool = False,
    balance: bool = False,
    cfg_options: dict[str, object] | None = None,
    dataloaders: tuple[str, ...] = (),
    bias_mode: str | None = None,
    tta: bool = False,
    backbone: str | None = None,
    test_set: str | None = None,
    test_root: str | None = None,
    shards: str | None = None,
    launcher: str = 'none',
) -> Config:
    """Read a config and change it, in the order of the code.

    Args:
        path: Config file or name of a config of this package (see `find_config`), or a config, which stays as it is.
        data: Own data in place of the config's (see `use_own_data`).
        mini: Make the miniature run of it (see `make_mini`), and draw the miniature datasets where they are needed.
        epochs: Length of the training (see `set_epochs`). What `cfg_options` says of the schedule stays.
        from_scratch: Train from random weights (see `start_from_scratch`), as a miniature run always does.
        balance: Let the pixels of rare classes count more in the training (see `weigh_classes`).
        cfg_options: Values by dotted key (see `merge_options`).
        dataloaders: Keys of the dataloaders whose data must exist, such as 'test_dataloader'.
        bias_mode: One of TransNeXt's `TEST_MODES`.
        tta: Merge the config's `tta_overrides`: values that differ in multi-scale and flip testing.
        backbone: 'timm/NAME' in place of the config's backbone (see `use_backbone`).
        test_set: Name of one of ImageNet's test sets (see `set_test_set`).
        test_root: Folder of its images (default: below data).
        shards: Folder of tar files to read the data from (see `use_shards`).
        launcher: What started this process (see `prepare_process`).

    Raises:
        InputError: The config cannot be run, an option is misspelt, it lacks what an argument asks for, its data do
            not exist, or the machine does not fit the launcher.
    """
    if test_set and (mini or data):
        raise InputError('--test-set names the images itself: leave out --mini and --data')
    if shards and (data or test_set):
        raise InputError('--shards has the data of a config: leave out --data and --test-set')
    options, trains = cfg_options or {}, 'train_dataloader' in dataloaders

    # Arguments that change many values come first, because single values win over them.
    config = copy.deepcopy(path) if isinstance(path, Config) else read_config(str(path), backbone)
    if backbone:
        use_backbone(config, backbone)
    if data:
        own = use_own_data(config, data)
        if trains and 'train' not in own.datasets:
            found = ' and '.join(own.datasets)
            raise InputError(f'no training images: found {found} alone; name them with --train-data')
    if mini:
        config = make_mini(config, None if data else MINI_ROOT)
        if not (data or shards):
            ensure_mini_data(config, dataloaders)
    if from_scratch:
        start_from_scratch(config)
    if tta:
        merge_tta_overrides(config)
    if bias_mode:
        set_bias_mode(config, bias_mode)
    if test_set:
        set_test_set(config, test_set, test_root)

    # Single values, which win over the changes above.
    for key in options:
        check_name(config, key)
    expect_weights(config, options)
    if data and LEARNING_RATE in options and config.get('auto_scale_lr'):
        config.auto_scale_lr.enable = False  # who names a rate means it for the batch that there is
    merge_options(config, options)
    fit_to_backbone(config)
    if trains:
        check_optimizer(config)
        check_num_classes(config)

    # These steps need the data that the config names by now, and the number of processes.
    if shards:
        use_shards(config, shards, dataloaders)
    check_data(config, dataloaders)
    config.launcher = launcher
    prepare_process(config, launcher, trains)
    if balance:
        weigh_classes(config)
    num_processes, steps_of_epoch = rank_and_size(launcher)[1], None
    if epochs:
        if entry := next((key for key in options if key.startswith('param_scheduler.')), None):
            raise InputError(
                f'--epochs changes all schedulers, so that --cfg-options {entry} would be in other units: leave one '
                'of them out'
            )
        steps_of_epoch = set_epochs(config, epochs, num_processes)
        # The options are merged again because `set_epochs` has overwritten what they say of the schedule.
        merge_options(config, {key: options[key] for key in options if not key.startswith(NOT_OF_SCHEDULE)})
    if trains and (mini or from_scratch) and LEARNING_RATE not in options:
        set_scratch_rate(config, num_processes, steps_of_epoch)
    return config


def read_config(path: str, backbone: str | None = None) -> Config:
    """Read the config of a model that can be tested; with a backbone it may be one of `RECIPES`."""
    path = find_config(f'_base_/recipes/{RECIPES[path]}' if backbone and path in RECIPES else path)
    if not Path(path).is_file():
        similar = similar_configs(path)
        raise InputError(f'config not found: {path}' + (f'; there are {", ".join(similar)}' if similar else ''))
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


def set_bias_mode(config: Config, mode: str) -> None:
    """Set the position bias of a config's backbone, a TransNeXt (see its `position_bias_settings`)."""
    backbone = config.model.get('backbone', {})
    backbone_type = MODELS.get(str(backbone.get('type')))
    if not hasattr(backbone_type, 'position_bias_settings'):
        raise InputError(
            f'--bias-mode is for configs with a bioattn_mm.TransNeXt backbone, this one has {backbone.get("type")}'
        )
    if mode == 'unscaled' and backbone.get('token_mixers'):
        raise InputError(
            f"'unscaled' takes the length scaling from TransNeXt's own token mixers, {config.filename} has others: "
            'leave it out'
        )
    settings = {key: backbone[key] for key in ('img_size', 'arch', 'pretrain_size') if key in backbone}
    backbone.update(backbone_type.position_bias_settings(mode, **settings))


def default_work_dir(config_path: str, mini: bool, data: DataArguments | None = None) -> str:
    """Folder of a run that names none: `work_dirs`, and below it the config's path below `configs`, or its name."""
    path = Path(config_path).resolve().with_suffix('')
    parts = path.parts
    place = '/'.join(parts[len(parts) - parts[::-1].index('configs') :]) if 'configs' in parts else path.name
    return f'work_dirs/{place}' + (f'_{data.name}' if data else '') + ('_mini' if mini else '')
