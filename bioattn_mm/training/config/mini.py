"""The miniature run: any config of the repository on generated data, in minutes on two CPU cores."""

from collections.abc import Sequence
from pathlib import Path

from mmengine.config import Config

from ...data.mini import FOLDERS, is_outdated, make_mini_datasets
from ...errors import InputError
from .classes import DATALOADERS
from .pipelines import find_datasets, is_one_of, map_values
from .schedule import start_from_scratch

MINI_ROOT = 'data/mini'
MINI_FOLDERS = dict(
    **dict.fromkeys(('ADE20KDataset', 'ADE20KInstanceDataset', 'ADE20KPanopticDataset'), FOLDERS['ade20k']),
    **dict.fromkeys(('CocoDataset', 'CocoPanopticDataset'), FOLDERS['coco']),
    ImageNet=FOLDERS['imagenet'],
)

# The miniature images are about a quarter of the real ones' size, so every size in pixels is divided by this.
SIZE_DIVISOR = 4
# Smaller sizes are not of images.
MIN_PIXEL_SIZE = 128
# Decoder queries, sampled regions and predictions of an image: the miniature ones hold few objects.
MAX_COUNT = 64
# DINO's untrained encoder chooses positions of the feature maps as queries blindly, and with 64 misses most objects.
# The smallest miniature image, 120 x 120, has 309 positions at strides 8 to 64.
MAX_DINO_QUERIES = 300

# Paths in a config, where '*' stands for any number of keys and indices.
PIXEL_SIZES = (
    *(f'*pipeline.*.{key}' for key in ('scale', 'scales', 'img_scale', 'crop_size', 'size', 'max_size')),
    'model.data_preprocessor.size',
    'model.data_preprocessor.batch_augments.*.size',
    'model.*.img_size',
    'model.test_cfg.crop_size',
    'model.test_cfg.stride',
)
# Mask2Former compares masks in so many points, which are divided as the area is.
MASK_POINTS = ('model.train_cfg.num_points', 'model.*.train_cfg.num_points')
COUNTS = (
    'model.*.num_queries',
    'model.train_cfg.*.num',  # sampled regions; in Cascade R-CNN, of several heads
    'model.*.max_per_img',
    'model.test_cfg.max_per_image',
    'tta_model.*.max_per_img',
)

# Classifiers would need hundreds of epochs to learn through these augmentations, so they are left out.
STRONG_AUGMENTATION = ('RandAugment', 'RandomErasing')

MAX_ITERS = 200
WARMUP_ITERS = 20
BATCH_SIZE = 2
# Images of classifiers are small: so many have about as many pixels.
CLASSIFICATION_BATCH_SIZE = 16
# An average of the weights over thousands of iterations would still be the random ones.
EMA_MOMENTUM = 0.1
# DINO learns its boxes last, so its rate stays high for longer.
DINO_DECAY_BEGIN = 140
SEED = 0


def make_mini(config: Config, mini_root: str | None = MINI_ROOT) -> Config:
    """Return a miniature of a training config; the model keeps its architecture and its classes.

    Data are the generated miniature of its dataset; image, crop and window sizes a quarter. The schedule is 200
    iterations of 2 images (classifiers: 16), warm-up and linear decay, one rate for all parameters (see
    `start_from_scratch`), a validation half-way and at the end, and a fixed seed. The model has random weights, BN
    instead of SyncBN, no stochastic depth, and fewer queries, sampled regions and predictions of an image.

    Args:
        config: Stays as it is.
        mini_root: Folder of the generated miniatures; None leaves the data as they are, for own data.

    Raises:
        InputError: There is no miniature of the config's dataset.
    """
    roots = {} if mini_root is None else _mini_roots(config, DATALOADERS, mini_root)

    def shrink(path: str, value: object) -> object:
        if isinstance(value, str):
            return _move('BN' if value == 'SyncBN' else value, roots)
        if is_one_of(path, PIXEL_SIZES):
            return _divide(value)
        if is_one_of(path, MASK_POINTS):
            return max(1, value // SIZE_DIVISOR**2)
        return min(value, MAX_COUNT) if is_one_of(path, COUNTS) else value

    config = Config(map_values(config.to_dict(), shrink), filename=config.filename)
    start_from_scratch(config)

    config.pop('sync_bn', None)
    is_classifier, is_dino = config.default_scope == 'mmpretrain', 'num_queries' in config.model
    if is_dino:
        config.model.num_queries = min(config.model.num_queries, MAX_DINO_QUERIES)
    backbone = config.model.backbone
    if 'drop_path_rate' in backbone:
        backbone.drop_path_rate = 0.0
    if 'pad_small_map' in backbone:  # of Swin's classifiers, whose last map gets smaller than a window
        backbone.pad_small_map = True
    if is_classifier:
        config.model.train_cfg = None  # mixup and cutmix
        config.model.get('data_preprocessor', {}).pop('batch_augments', None)
        for dataset in find_datasets([config.train_dataloader]):
            dataset.pipeline = [step for step in dataset.pipeline if step['type'] not in STRONG_AUGMENTATION]

    batch_size = CLASSIFICATION_BATCH_SIZE if is_classifier else BATCH_SIZE
    config.train_dataloader.update(batch_size=batch_size, num_workers=2, persistent_workers=True)
    config.train_dataloader.sampler = dict(type='InfiniteSampler', shuffle=True)
    for dataloader in filter(None, map(config.get, DATALOADERS[1:])):
        dataloader.update(num_workers=1, persistent_workers=False)
    config.env_cfg = {**config.get('env_cfg', {}), 'cudnn_benchmark': False}

    config.randomness = dict(seed=SEED)
    decay_begin = DINO_DECAY_BEGIN if is_dino else WARMUP_ITERS
    config.train_cfg = dict(type='IterBasedTrainLoop', max_iters=MAX_ITERS, val_interval=MAX_ITERS // 2)
    config.param_scheduler = [
        dict(type='LinearLR', start_factor=1e-3, by_epoch=False, begin=0, end=WARMUP_ITERS),
        dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=decay_begin, end=MAX_ITERS),
    ]
    hooks = dict(logger=dict(type='LoggerHook'), checkpoint=dict(type='CheckpointHook'))
    config.default_hooks = {**hooks, **config.get('default_hooks', {})}
    config.default_hooks.logger.update(interval=10, log_metric_by_epoch=False)
    config.default_hooks.checkpoint.update(by_epoch=False, interval=MAX_ITERS // 2, max_keep_ckpts=1)
    config.log_processor = dict(by_epoch=False)
    for hook in config.get('custom_hooks') or []:
        if str(hook['type']).endswith('EMAHook'):
            hook.momentum = EMA_MOMENTUM
    return config


def with_mini_test_data(config: Config) -> Config:
    """Return a config whose test reads the generated miniature of its dataset, with all else as it is."""
    roots = _mini_roots(config, ('test_dataloader',), MINI_ROOT)
    return Config(map_values(config.to_dict(), lambda path, value: _move(value, roots)), filename=config.filename)


def ensure_mini_data(config: Config, dataloaders: Sequence[str], mini_root: str = MINI_ROOT) -> None:
    """Draw the miniatures that some dataloaders read, where there are none; refuse those of another version."""
    roots = {dataset['data_root'] for dataset in find_datasets([config.get(name) for name in dataloaders])}
    for name, folder in FOLDERS.items():
        root = f'{mini_root}/{folder}'
        if root not in roots:
            continue
        if not Path(root).exists():
            make_mini_datasets(mini_root, names=[name])
        elif is_outdated(Path(root)):
            raise InputError(f'{root} was drawn by another version of bioattn_mm: remove it, to draw it again')


def _mini_roots(config: Config, dataloaders: tuple[str, ...], mini_root: str) -> dict[str, str]:
    """Folder of the miniature by data root, for the datasets of some dataloaders."""
    roots = {}
    for dataset in find_datasets([config.get(name) for name in dataloaders]):
        if dataset['type'] not in MINI_FOLDERS:
            raise InputError(f'no miniature of {dataset["type"]}: expected one of {", ".join(MINI_FOLDERS)}')
        roots[dataset['data_root'].rstrip('/')] = f'{mini_root}/{MINI_FOLDERS[dataset["type"]]}'
    return roots


def _move(value: object, roots: dict[str, str]) -> object:
    """Replace the data root that a path is or lies in; another value stays as it is."""
    for old_root, new_root in roots.items() if isinstance(value, str) else ():
        if f'{value}/'.startswith(f'{old_root}/'):
            return new_root + value.rstrip('/')[len(old_root) :]
    return value


def _divide(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return type(value)(_divide(item) for item in value)
    if isinstance(value, int) and value >= MIN_PIXEL_SIZE:
        return value // SIZE_DIVISOR
    return value
