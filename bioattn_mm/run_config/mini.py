"""The miniature run: any config of the repository on generated data, in minutes on two CPU cores."""

from pathlib import Path

from mmengine.config import Config

from ..datasets.mini import FOLDERS, is_outdated, make_mini_datasets
from ..errors import InputError
from .pipelines import find_datasets
from .scratch import is_one_of, map_values, start_from_scratch

MINI_ROOT = 'data/mini'
MINI_FOLDERS = dict(
    ADE20KDataset=FOLDERS['ade20k'],
    ADE20KInstanceDataset=FOLDERS['ade20k'],
    ADE20KPanopticDataset=FOLDERS['ade20k'],
    CocoDataset=FOLDERS['coco'],
    CocoPanopticDataset=FOLDERS['coco'],
    ImageNet=FOLDERS['imagenet'],
)

# The miniature images are about a quarter of the real ones' size, so every size in pixels is divided by this.
SIZE_DIVISOR = 4
# Smaller sizes are not of images.
MIN_PIXEL_SIZE = 128
# Decoder queries, sampled regions and predictions of an image: the miniature ones hold few objects.
MAX_COUNT = 64
# DINO's encoder chooses positions of the feature maps as queries, and only the chosen ones learn. Untrained, it
# chooses blindly: with 64 it misses most objects and learns nothing in 200 iterations (AP50 0.0 %). The smallest
# miniature image, 120 x 120, has 309 positions at strides 8 to 64.
MAX_DINO_QUERIES = 300

# Paths in a config, where '*' stands for any number of keys and indices: 'model.*.max_per_img' includes
# 'model.test_cfg.rcnn.max_per_img', and '*pipeline.*' the steps inside of dataset wrappers and of other steps.
PIXEL_SIZES = (
    *(f'*pipeline.*.{key}' for key in ('scale', 'scales', 'img_scale', 'crop_size', 'size', 'max_size')),
    'model.data_preprocessor.size',
    'model.data_preprocessor.batch_augments.*.size',
    'model.*.img_size',
    'model.test_cfg.crop_size',
    'model.test_cfg.stride',
)
# Mask2Former compares masks in so many points, which are divided as the area is: all of them would be more than a
# miniature mask has pixels, and would take a third of a step.
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

    Data: the generated miniature of its dataset; image, crop and window sizes a quarter. Schedule: 200 iterations of
    2 images (classifiers: 16), warm-up and linear decay (DINO: in the last 60), one rate for all parameters (see
    `start_from_scratch`), one validation half-way and one at the end, averages of the weights over
    about 10 iterations, fixed seed. Model: random weights instead of a checkpoint, BN instead of SyncBN, no
    stochastic depth, at most 64 queries, sampled regions and predictions of an image (DINO: 300 queries), of
    Mask2Former a sixteenth of the points in which masks are compared.
    Classifiers: crops and flips, but no stronger augmentation.

    Args:
        config: Stays as it is.
        mini_root: Folder of the generated miniatures; None leaves the data as they are, for own data.

    Raises:
        InputError: There is no miniature of the config's dataset.
    """
    dataloaders = ('train_dataloader', 'val_dataloader', 'test_dataloader')
    roots = {} if mini_root is None else _mini_roots(config, dataloaders, mini_root)

    def shrink(path: str, value: object) -> object:
        if isinstance(value, str):
            return 'BN' if value == 'SyncBN' else _move(value, roots)
        if is_one_of(path, PIXEL_SIZES):
            return _divide(value)
        if is_one_of(path, MASK_POINTS):
            return max(1, value // SIZE_DIVISOR**2)
        return min(value, MAX_COUNT) if is_one_of(path, COUNTS) else value

    config = Config(map_values(config.to_dict(), shrink), filename=config.filename)
    is_dino = 'num_queries' in config.model
    start_from_scratch(config)
    _make_mini_model(config)
    _make_mini_data(config)
    _make_mini_schedule(config, DINO_DECAY_BEGIN if is_dino else WARMUP_ITERS)
    config.randomness = dict(seed=SEED)
    return config


def _make_mini_model(config: Config) -> None:
    """What a model of few images and iterations does without."""
    config.pop('sync_bn', None)
    if 'num_queries' in config.model:  # of DINO
        config.model.num_queries = min(config.model.num_queries, MAX_DINO_QUERIES)
    backbone = config.model.backbone
    if 'drop_path_rate' in backbone:
        backbone.drop_path_rate = 0.0
    if 'pad_small_map' in backbone:  # of Swin's classifiers, whose last map gets smaller than a window
        backbone.pad_small_map = True
    if config.default_scope == 'mmpretrain':
        # Mixup and cutmix.
        config.model.train_cfg = None
        config.model.get('data_preprocessor', {}).pop('batch_augments', None)


def _make_mini_data(config: Config) -> None:
    """Small batches of few workers; of classifiers without strong augmentation."""
    is_classifier = config.default_scope == 'mmpretrain'
    for dataset in find_datasets([config.train_dataloader]) if is_classifier else ():
        dataset.pipeline = [step for step in dataset.pipeline if step['type'] not in STRONG_AUGMENTATION]
    batch_size = CLASSIFICATION_BATCH_SIZE if is_classifier else BATCH_SIZE
    config.train_dataloader.update(batch_size=batch_size, num_workers=2, persistent_workers=True)
    config.train_dataloader.sampler = dict(type='InfiniteSampler', shuffle=True)
    for dataloader in (config.val_dataloader, config.test_dataloader):
        dataloader.update(num_workers=1, persistent_workers=False)
    config.env_cfg.update(cudnn_benchmark=False)


def _make_mini_schedule(config: Config, decay_begin: int) -> None:
    """`MAX_ITERS` iterations, with validations, logs and checkpoints on the way."""
    config.train_cfg = dict(type='IterBasedTrainLoop', max_iters=MAX_ITERS, val_interval=MAX_ITERS // 2)
    config.param_scheduler = [
        dict(type='LinearLR', start_factor=1e-3, by_epoch=False, begin=0, end=WARMUP_ITERS),
        dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=decay_begin, end=MAX_ITERS),
    ]
    config.default_hooks.logger.update(interval=10, log_metric_by_epoch=False)
    config.default_hooks.checkpoint.update(by_epoch=False, interval=MAX_ITERS // 2, max_keep_ckpts=1)
    config.log_processor = dict(by_epoch=False)
    for hook in config.get('custom_hooks') or []:
        if str(hook['type']).endswith('EMAHook'):
            hook.momentum = EMA_MOMENTUM


def with_mini_test_data(config: Config, mini_root: str = MINI_ROOT) -> Config:
    """Return a config whose test reads the generated miniature of its dataset, with sizes and all else as they are.

    Raises:
        InputError: There is no miniature of the config's dataset.
    """
    roots = _mini_roots(config, ('test_dataloader',), mini_root)

    def move(path: str, value: object) -> object:
        return _move(value, roots) if isinstance(value, str) else value

    return Config(map_values(config.to_dict(), move), filename=config.filename)


def ensure_mini_data(mini_root: str = MINI_ROOT) -> None:
    """Draw those miniature datasets whose folders do not exist; others stay, whatever arguments they were made with.

    Raises:
        InputError: They were drawn by a version of this package that drew other images.
    """
    folders = {name: Path(mini_root) / folder for name, folder in FOLDERS.items()}
    absent = [name for name, folder in folders.items() if not folder.exists()]
    if absent:
        make_mini_datasets(mini_root, names=absent)
    for folder in folders.values():
        if is_outdated(folder):
            raise InputError(
                f'{folder} was drawn by another version of bioattn_mm: draw it again with '
                'tools/make_mini_datasets.py --overwrite'
            )


def _mini_roots(config: Config, dataloaders: tuple[str, ...], mini_root: str) -> dict[str, str]:
    """Folder of the miniature by data root, for the datasets of some dataloaders."""
    roots = {}
    for dataset in find_datasets([config[dataloader] for dataloader in dataloaders]):
        if dataset['type'] not in MINI_FOLDERS:
            raise InputError(f'no miniature of {dataset["type"]}: expected one of {", ".join(MINI_FOLDERS)}')
        roots[dataset['data_root'].rstrip('/')] = f'{mini_root}/{MINI_FOLDERS[dataset["type"]]}'
    return roots


def _move(path: str, roots: dict[str, str]) -> str:
    """Replace the data root that `path` is or lies in; another path stays as it is."""
    for old_root, new_root in roots.items():
        if path.rstrip('/') == old_root or path.startswith(f'{old_root}/'):
            return new_root + path.rstrip('/')[len(old_root) :]
    return path


def _divide(value: object) -> object:
    """Divide the pixel sizes in an int or in nested sequences of ints."""
    if isinstance(value, (list, tuple)):
        return type(value)(_divide(item) for item in value)
    if isinstance(value, int) and value >= MIN_PIXEL_SIZE:
        return value // SIZE_DIVISOR
    return value
