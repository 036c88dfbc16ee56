"""The config of a run: read from a file and changed as the command line asks."""

import copy
from pathlib import Path

from mmengine.config import Config, ConfigDict

from ..datasets.imagenet import NUM_CLASSES
from ..datasets.shards import BACKEND
from ..errors import InputError
from ..registry import MODELS
from .backbone import fit_to_backbone, recipe_of, use_backbone
from .balance import balance_classes
from .distributed import prepare_process, rank_and_size
from .imagenet import set_test_set
from .installed import find_config
from .mini import MINI_FOLDERS, MINI_ROOT, ensure_mini_data, make_mini
from .options import check_name, check_options
from .own_data import DataArguments, use_own_data
from .pipelines import find_datasets
from .schedule import num_steps, set_epochs
from .scratch import has_rate_by_length, set_scratch_rate, start_from_scratch
from .shards import use_shards

HOW_TO_GET = dict(
    ADE20KDataset='download ADEChallengeData2016.zip of the MIT Scene Parsing Benchmark '
    '(http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip) and unpack it into data/ade',
    **dict.fromkeys(
        ('ADE20KInstanceDataset', 'ADE20KPanopticDataset'),
        'unpack ADEChallengeData2016.zip of the MIT Scene Parsing Benchmark '
        '(http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip) into data/ade, in its folder '
        'http://sceneparsing.csail.mit.edu/data/ChallengeData2017/annotations_instance.tar, and run '
        'tools/convert_ade20k.py data/ade/ADEChallengeData2016',
    ),
    CocoPanopticDataset='download the 2017 train and val images, annotations and panoptic annotations from '
    'https://cocodataset.org/#download, unpack them into data/coco, and the two archives in its annotations there',
    CocoDataset='download the 2017 train and val images and annotations from https://cocodataset.org/#download '
    'and unpack them into data/coco',
    **dict.fromkeys(
        ('ImageNet', 'imagenet_first_classes'),
        'download ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar from https://image-net.org/download.php, which '
        'asks you to register, and unpack them into data/imagenet/train and data/imagenet/val, each image into the '
        'folder of its class (data/imagenet/train/n01440764/n01440764_18.JPEG)',
    ),
    ImageNetV2='download imagenetv2-matched-frequency.tar.gz of https://huggingface.co/datasets/vaishaal/ImageNetV2 '
    'and unpack it into data, or name its folder with --test-root',
    ImageNetA='download https://people.eecs.berkeley.edu/~hendrycks/imagenet-a.tar and unpack it into data, or name '
    'its folder with --test-root',
    ImageNetR='download https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar and unpack it into data, or name '
    'its folder with --test-root',
    ImageNetSketch='download ImageNet-Sketch.zip of https://github.com/HaohanWang/ImageNet-Sketch and unpack it into '
    'data, or name its folder with --test-root',
    ImageNetC='download noise.tar, blur.tar, weather.tar and digital.tar of https://zenodo.org/records/2235448 and '
    'unpack them into data/imagenet-c, or name their folder with --test-root',
)


LEARNING_RATE = 'optim_wrapper.optimizer.lr'
# `--balance-classes` changes these parts after the options were merged into them: merging the options again, as
# `--epochs` does, would undo it.
NOT_OF_SCHEDULE = ('model.', 'train_dataloader.dataset')
# What the parts of a config are that this package looks into, where there are any.
KINDS = {
    'model model.backbone train_dataloader val_dataloader test_dataloader train_dataloader.dataset '
    'val_dataloader.dataset test_dataloader.dataset train_cfg val_cfg test_cfg optim_wrapper default_hooks env_cfg '
    'visualizer randomness log_processor auto_scale_lr tta_model tta_overrides': (dict, 'a dict'),
    'test_evaluator val_evaluator param_scheduler': ((dict, list), 'a dict or a list of dicts'),
    'custom_hooks tta_pipeline train_dataloader.dataset.pipeline val_dataloader.dataset.pipeline '
    'test_dataloader.dataset.pipeline': (list, 'a list of dicts'),
    'default_scope work_dir load_from': (str, 'a text'),
}


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
    """Read a config and change it.

    Applied are, in this order, `backbone`, `data`, `mini`, `from_scratch`, `tta`, `bias_mode`, `test_set`,
    `cfg_options`, `shards`, `balance`, `epochs`.

    Args:
        path: Config file or name of a config of this package (see `find_config`), or a config that was read, which
            stays as it is.
        data: Own data in place of the config's (see `use_own_data`).
        mini: Make the miniature run of it; without `data`, draw the miniature datasets if data are needed and they
            are not there yet.
        from_scratch: Train from random weights (see `start_from_scratch`), as a miniature run always does. The rate
            goes by the length of the training (see `set_scratch_rate`).
        balance: Let rare classes count more in the training (see `balance_classes`).
        epochs: Length of the training, see `set_epochs`. What `cfg_options` says of the schedule stays.
        cfg_options: Values by dotted key, see `merge_options`.
        dataloaders: Keys of the dataloaders whose data must exist, such as 'test_dataloader'.
        bias_mode: One of TransNeXt's `BIAS_MODES`.
        backbone: 'timm/NAME' in place of the config's backbone (see `use_backbone`).
        tta: Merge the config's `tta_overrides`: values that differ in multi-scale and flip testing.
        test_set: Name of one of ImageNet's test sets, see `set_test_set`.
        test_root: Folder of its images (default: below data).
        shards: Folder of tar files to read the data from, see `use_shards`.
        launcher: What started this process, see `prepare_process`.

    Raises:
        InputError: The config cannot be run, an option is misspelt or has a value that none can have (see `options`),
            it lacks what an argument asks for, its data do not exist, or the machine does not fit the launcher.
    """
    if test_set and (mini or data):
        raise InputError('--test-set names the images itself: leave out --mini and --data')
    if shards and (data or test_set):
        raise InputError('--shards has the data of a config: leave out --data and --test-set')
    config = _read_or_copy(path, backbone)
    if data:
        _use_data(config, data, dataloaders)
    if mini:
        config = make_mini(config, None if data else MINI_ROOT)
        if dataloaders and not (data or shards):
            ensure_mini_data()
    if from_scratch:
        start_from_scratch(config)
    if tta:
        _use_tta(config)
    if bias_mode:
        set_bias_mode(config, bias_mode)
    if test_set:
        set_test_set(config, test_set, test_root)
    for key in cfg_options or ():
        check_name(config, key)
    expect_weights(config, cfg_options)
    names_rate = LEARNING_RATE in (cfg_options or {})
    if data and names_rate and config.get('auto_scale_lr'):
        config.auto_scale_lr.enable = False  # who names a rate means it for the batch that there is
    merge_options(config, cfg_options)
    fit_to_backbone(config)
    check_options(config, 'train_dataloader' in dataloaders)
    if shards:
        use_shards(config, shards, dataloaders)
    check_data(config, dataloaders)
    config.launcher = launcher
    prepare_process(config, launcher)
    if balance:
        balance_classes(config)
    num_processes, steps_of_epoch = rank_and_size(launcher)[1], None
    if epochs:
        entry = next((key for key in cfg_options or () if key.startswith('param_scheduler.')), None)
        if entry is not None:
            raise InputError(
                f'--epochs changes all schedulers, so that --cfg-options {entry} would be in other units: leave one '
                'of them out'
            )
        steps_of_epoch = set_epochs(config, epochs, num_processes)
        # The options are merged again because `set_epochs` has overwritten what they say of the schedule.
        of_schedule = {
            key: value for key, value in (cfg_options or {}).items() if not key.startswith(NOT_OF_SCHEDULE)
        }
        merge_options(config, of_schedule)
    trains_from_scratch = (mini or from_scratch) and 'train_dataloader' in dataloaders
    if trains_from_scratch and has_rate_by_length(config) and not names_rate:
        set_scratch_rate(config, num_steps(config, num_processes, steps_of_epoch))
    return config


def _read_or_copy(path: str | Path | Config, backbone: str | None) -> Config:
    """The config, or a copy of one that was read; with another backbone if one is named."""
    if backbone:
        path = recipe_of(str(path))
    config = copy.deepcopy(path) if isinstance(path, Config) else read_config(str(path))
    if backbone:
        use_backbone(config, backbone)
    return config


def _use_data(config: Config, data: DataArguments, dataloaders: tuple[str, ...]) -> None:
    """Own data in place of the config's, among them images to train on if the run trains."""
    own = use_own_data(config, data)
    if 'train_dataloader' in dataloaders and 'train' not in own.datasets:
        raise InputError(f'no training images: found {" and ".join(own.datasets)} alone; name them with --train-data')


def _use_tta(config: Config) -> None:
    """Merge what differs in multi-scale testing, which the config must define."""
    absent = [key for key in ('tta_model', 'tta_pipeline') if not config.get(key)]
    if absent:
        raise InputError(
            f'multi-scale testing needs {" and ".join(absent)} in the config, {config.filename} has none'
        )
    config.merge_from_dict(config.get('tta_overrides', {}))


def read_config(path: str) -> Config:
    """Read the config of a model that can be tested: a file, or the name of one of this package (see `find_config`).

    Raises:
        InputError: The file is missing, cannot be read, or lacks parts of such a config.
    """
    path = find_config(path)
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
    for names, (kinds, expected) in KINDS.items():
        for name in names.split():
            value = config
            for key in name.split('.'):
                value = value.get(key) if isinstance(value, (dict, Config)) else None
            if value is not None and not isinstance(value, kinds):
                raise InputError(f'{path} cannot be run: {name} is {value!r:.60}, expected {expected}')
    return config


def set_bias_mode(config: Config, mode: str) -> None:
    """Set the position bias of a config's backbone, a TransNeXt (see its `position_bias_settings`).

    Raises:
        InputError: The config has another backbone, or token mixers that the mode would replace, or there is no such
            mode.
    """
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


def merge_options(config: Config, options: dict[str, object] | None) -> None:
    """Override values of a config with those of `--cfg-options`.

    Args:
        config: Changed in place.
        options: Values by key: names of nested dicts and indices of lists, joined by dots.

    Raises:
        InputError: A key leads through a value that is neither dict nor list or to an index that a list does not
            have, or a value would replace a whole dict.
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


def expect_weights(config: Config, options: dict[str, object] | None) -> None:
    """Let `--cfg-options model.backbone.init_cfg.checkpoint=FILE` be enough where there is no `init_cfg` yet.

    A config may have none, or `--mini` took it away. The same for `model.init_cfg`, the weights of a whole model.
    """
    for name, module in (('model', config.model), ('model.backbone', config.model.get('backbone'))):
        if f'{name}.init_cfg.checkpoint' in (options or {}) and module is not None and not module.get('init_cfg'):
            module.init_cfg = dict(type='Pretrained')


def check_data(config: Config, dataloaders: tuple[str, ...]) -> None:
    """Raise an `InputError` that names the first data folder or annotation file that does not exist."""
    for dataset in find_datasets([config.get(dataloader) for dataloader in dataloaders]):
        if (dataset.get('backend_args') or {}).get('backend') == BACKEND:  # looked for in `use_shards`
            continue
        root = Path(dataset['data_root'] or '')
        prefix = dataset.get('data_prefix') or dataset.get('split') or {}  # mmpretrain's may be a string
        parts = [
            part for part in (prefix.values() if isinstance(prefix, dict) else [prefix]) if isinstance(part, str)
        ]
        parts += [dataset['ann_file']] if dataset.get('ann_file') else []
        for path in [root] + [root / part for part in parts]:
            if not path.exists():
                name = dataset['type'].removeprefix('bioattn_mm.')
                how = HOW_TO_GET.get(name, 'set data_root with --cfg-options')
                how = 'name the folder of own data with --data' if 'own_data' in config else how
                if name in MINI_FOLDERS:
                    how += '; or use generated miniature data instead: --mini'
                raise InputError(f'no data for {name} at {path} (looked for from {Path.cwd()}); {how}')
        if dataset['type'] in ('ImageNet', 'bioattn_mm.imagenet_first_classes'):
            check_classes_are_known(dataset, root)


def check_classes_are_known(dataset: ConfigDict, root: Path) -> None:
    """Raise an `InputError` if neither folders nor a file in `meta` say which classes ImageNet's images are of.

    The archive of the validation images has neither: it unpacks into one folder.
    """
    split = dataset.get('split', '')
    if dataset.get('ann_file') or (split and (root / 'meta' / f'{split}.txt').exists()):
        return
    prefix = dataset.get('data_prefix') or split
    folder = root / (prefix.get('img_path', '') if isinstance(prefix, dict) else prefix)
    number = sum(path.is_dir() for path in folder.iterdir())
    wanted = len((dataset.get('metainfo') or {}).get('classes') or range(NUM_CLASSES))
    if number != wanted:
        raise InputError(
            f'{folder} has {number} folders, expected one for each of {wanted} classes: sort the images into them, '
            f'or write {root / "meta" / f"{split}.txt"} with lines such as "ILSVRC2012_val_00000001.JPEG 65"'
        )


def default_work_dir(config_path: str, mini: bool, data: DataArguments | None = None) -> str:
    """Folder of a run that names none: `work_dirs`, and below it the config's path below `configs`.

    The path is kept because configs of different systems share file names. Of a config outside of `configs` it is the
    file name alone. The names of own data and of a miniature run follow it.
    """
    path = Path(config_path).resolve().with_suffix('')
    parts = path.parts
    place = '/'.join(parts[len(parts) - parts[::-1].index('configs') :]) if 'configs' in parts else path.name
    return f'work_dirs/{place}' + (f'_{data.name}' if data else '') + ('_mini' if mini else '')
