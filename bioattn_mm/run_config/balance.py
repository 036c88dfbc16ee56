"""Training data whose classes differ in how often they occur: rare ones get more weight, or more steps."""

import contextlib
import io
from collections import Counter

import numpy as np
from mmengine.config import Config, ConfigDict
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, init_default_scope

from ..datasets.parallel import run_all, spread
from ..errors import InputError
from .classes import leaf_dataset_configs
from .pipelines import find_dicts, type_name

# Label maps whose pixels are counted, at most, spread over all.
MAX_LABEL_MAPS = 1000
NUM_SHOWN = 20  # weights in the line for the log
SEGMENTATION_HEADS = ('decode_head', 'auxiliary_head')


def balance_classes(config: Config) -> None:
    """Let rare classes count as much as others in a training.

    Of a segmentor the cross entropy of each class's pixels is multiplied by the median of all classes' frequencies
    over its own; the frequency is the share of its pixels in the images that show it (median frequency balancing,
    Eigen and Fergus, ICCV 2015). Of a detector or a classifier images of classes that are in fewer than half as many
    images as the median class come more often, by mmengine's `ClassBalancedDataset`.

    Args:
        config: Changed in place; its training data must exist. The weights or the threshold stand in it as numbers,
            and in `class_balance` a line for the log.

    Raises:
        InputError: The model has no cross entropy of pixels over several classes, no pixel is labelled, or the
            dataset does not say which classes its images show.
    """
    init_default_scope(config.default_scope)
    change = _weigh_pixels if config.default_scope == 'mmseg' else _repeat_images
    config.class_balance = change(config)


def _weigh_pixels(config: Config) -> str:
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
            'over several classes. Those of Mask2Former do not need it: each class of an image counts the same'
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
    ranked = [f'{weight:g} ({name})' for weight, name in sorted(zip(weights, classes))]
    shown = ranked if len(ranked) <= NUM_SHOWN else [*ranked[: NUM_SHOWN // 2], '...', *ranked[-NUM_SHOWN // 2 :]]
    return f'weights of the pixels of each class: {", ".join(shown)}'


def class_weights(pixels: np.ndarray, pixels_of_images: np.ndarray) -> list[float]:
    """Weights of classes by median frequency.

    Args:
        pixels: (num_classes,) number of each class's pixels, not all 0.
        pixels_of_images: (num_classes,) number of all labelled pixels in the images that show the class.

    Returns:
        For each class the median of the frequencies over its own, to 4 digits; 1 where it has no pixel.
    """
    occurs = pixels > 0
    frequencies = pixels[occurs] / pixels_of_images[occurs]
    weights = np.ones(len(pixels))
    weights[occurs] = np.median(frequencies) / frequencies
    return [float(f'{weight:.4g}') for weight in weights]


def _count_pixels(config: Config) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """The classes, and what `class_weights` takes, of the training's label maps."""
    pixels = pixels_of_images = 0
    for leaf in leaf_dataset_configs(config.train_dataloader.dataset):
        dataset = DATASETS.build(dict(leaf, pipeline=[]))
        for counts in _counts_of_maps(dataset):
            pixels = pixels + counts
            pixels_of_images = pixels_of_images + counts.sum() * (counts > 0)
    return tuple(dataset.metainfo['classes']), np.asarray(pixels), np.asarray(pixels_of_images)


def _counts_of_maps(dataset: BaseDataset) -> list[np.ndarray]:
    """Pixels of each class, (num_classes,), in each of at most `MAX_LABEL_MAPS` label maps that can be read."""
    from ..datasets.label_maps import counts_of  # here: it imports mmseg

    places = spread(len(dataset), MAX_LABEL_MAPS)
    found = run_all(lambda number: counts_of(dataset, places[number]), len(places))
    return [of_map[0] for of_map in found if of_map is not None and of_map[0] is not None]


def _repeat_images(config: Config) -> str:
    settings = config.train_dataloader.dataset
    if str(settings.type).endswith('ClassBalancedDataset'):  # as in the config of a run that was balanced
        settings = settings.dataset
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints
        dataset = DATASETS.build(settings)
    try:
        if not isinstance(dataset, BaseDataset):
            raise NotImplementedError('of wrappers')  # which `ClassBalancedDataset` does not take
        images = Counter(label for index in range(len(dataset)) for label in set(dataset.get_cat_ids(index)))
    except (AttributeError, NotImplementedError) as error:
        raise InputError(
            f'--balance-classes repeats images by their classes, and {type(dataset).__name__} does not say which '
            'they show (get_cat_ids)'
        ) from error
    if not images:
        raise InputError(
            '--balance-classes repeats images of rare classes, and no training image shows a class: '
            'tools/inspect_data.py lists what is wrong'
        )
    # The copies of an image are rounded up: with the median itself half of all classes would come twice. Not rounded,
    # or a class in just half as many images would come twice as well.
    threshold = float(np.median(list(images.values()))) / len(dataset) / 2
    balanced = dict(type='ClassBalancedDataset', oversample_thr=threshold)
    number = len(DATASETS.build(dict(balanced, dataset=dataset)))
    if number == len(dataset):
        config.train_dataloader.dataset = settings
        return 'no class is in fewer than half as many images as the median class: no image comes more often'
    config.train_dataloader.dataset = ConfigDict(balanced, dataset=settings)
    return f'images with rare classes come more often: {number} steps through {len(dataset)} images in an epoch'
