"""Which training samples count: rare classes more (`--balance-classes`), or a part of all (`--fraction`)."""

import functools
import math
from pathlib import Path

import numpy as np
from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, init_default_scope

from ...data.formats.label_maps import counts_of
from ...data.image_files import in_threads, spread
from ...errors import InputError
from .classes import leaf_dataset_configs
from .pipelines import as_list, find_dicts, type_name

# Label maps whose pixels are counted, at most, spread over all.
MAX_LABEL_MAPS = 1000
# Arguments of a scheduler that are numbers of epochs, where it counts epochs.
EPOCHS = ('begin', 'end', 'T_max', 'step_size', 'milestones', 'periods')
SEGMENTATION_HEADS = ('decode_head', 'auxiliary_head')


def weigh_classes(config: Config) -> None:
    """Let the pixels of rare classes count as much as others in the training of a segmentor.

    The cross entropy of each class's pixels is multiplied by the median of all classes' frequencies over its own; the
    frequency is the share of its pixels in the images that show it (median frequency balancing, Eigen and Fergus,
    ICCV 2015). The weights stand in the config, and in `class_balance` a line for the log. The training data must
    exist.

    Raises:
        InputError: The model has no cross entropy of pixels over several classes, or no pixel is labelled.
    """
    init_default_scope(config.default_scope)
    losses = [
        loss
        for head in SEGMENTATION_HEADS
        for part in find_dicts(config.model.get(head))
        for loss in find_dicts(part.get('loss_decode'))
        if type_name(loss) == 'CrossEntropyLoss' and not loss.get('use_sigmoid')
    ]
    if not losses:
        raise InputError(
            f'--balance-classes weighs the cross entropy of pixels, and the heads of {config.filename} have none '
            'over several classes. Those of Mask2Former do not need it; for detectors and classifiers take '
            "mmengine's ClassBalancedDataset"
        )
    classes, pixels, pixels_of_images = _count_pixels(config)
    if not pixels.any():
        raise InputError(
            '--balance-classes counts the pixels of each class, and no label map of the training can be read and has '
            'any: tools/inspect_data.py lists what is wrong'
        )
    weights = class_weights(pixels, pixels_of_images)
    for loss in losses:
        loss.class_weight = weights
        # mmseg fails where a loss has both weights and `avg_non_ignore`, which asks for the mean over the pixels that
        # count; with weights it takes that mean in any case.
        loss.pop('avg_non_ignore', None)
    ranked = ', '.join(f'{weight:g} ({name})' for weight, name in sorted(zip(weights, classes)))
    config.class_balance = f'weights of the pixels of each class: {ranked}'


def class_weights(pixels: np.ndarray, pixels_of_images: np.ndarray) -> list[float]:
    """The median of the frequencies of all classes over that of each, to 4 digits; 1 for a class without a pixel.

    Both arguments are (num_classes,): each class's pixels, and the labelled pixels in the images that show it.
    """
    occurs = pixels > 0
    frequencies = pixels[occurs] / pixels_of_images[occurs]
    weights = np.ones(len(pixels))
    weights[occurs] = np.median(frequencies) / frequencies
    return [float(f'{weight:.4g}') for weight in weights]


def _count_pixels(config: Config) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    pixels = pixels_of_images = 0
    for leaf in leaf_dataset_configs(config.train_dataloader.dataset):
        dataset = DATASETS.build(dict(leaf, pipeline=[]))
        places = spread(len(dataset), MAX_LABEL_MAPS)
        for found in in_threads(functools.partial(counts_of, dataset), places):
            if found is not None and found[0] is not None:  # else the label map cannot be read
                pixels = pixels + found[0]
                pixels_of_images = pixels_of_images + found[0].sum() * (found[0] > 0)
    return tuple(dataset.metainfo['classes']), np.asarray(pixels), np.asarray(pixels_of_images)


def set_fraction(config: Config, fraction: float) -> None:
    """Train on a fraction of the images of each class, for as many more epochs, as in ConViT (table 2).

    Schedule, validation and checkpoints take as many more epochs, too, so that the network sees as many images as in
    the whole training. PerViT (table 4) keeps parts of each class, too. Both take the first files of a class by name;
    here they are drawn.
    """
    if not 0 < fraction <= 1:
        raise InputError(f'--fraction must be above 0 and at most 1, got {fraction}')
    if config.get('default_scope') != 'mmpretrain':
        raise InputError(
            f'--fraction takes as much of every class, which needs a dataset of mmpretrain with one class an image; '
            f'{Path(config.filename).name} has {config.train_dataloader.dataset.get("type")}'
        )
    config.train_dataloader.dataset = ConfigDict(
        type='bioattn_mm.class_balanced_part', fraction=fraction, dataset=config.train_dataloader.dataset
    )
    if 'max_epochs' not in config.train_cfg:
        return

    def scaled(epochs: float | list[float]) -> float | list[float]:
        if isinstance(epochs, (list, tuple)):
            return [scaled(each) for each in epochs]
        return round(epochs / fraction) if math.isfinite(epochs) else epochs

    config.train_cfg.max_epochs = scaled(config.train_cfg.max_epochs)
    config.train_cfg.val_interval = scaled(config.train_cfg.get('val_interval', 1))
    for scheduler in as_list(config.get('param_scheduler')):
        if scheduler.get('by_epoch', True):
            scheduler.update({key: scaled(scheduler[key]) for key in EPOCHS if key in scheduler})
            if type_name(scheduler) == 'ExponentialLR':
                scheduler.gamma **= fraction
    checkpoint = config.get('default_hooks', {}).get('checkpoint') or {}
    if checkpoint.get('by_epoch', True) and checkpoint.get('interval', -1) > 0:
        checkpoint.interval = scaled(checkpoint.interval)
