"""Training on a part of a classification dataset that has as much of every class."""

import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.logging import print_log
from mmengine.registry import DATASETS as MMENGINE_DATASETS

from ..errors import InputError
from ..registry import DATASETS


@DATASETS.register_module()
def class_balanced_part(dataset: dict, fraction: float, seed: int = 0) -> BaseDataset:
    """Build a dataset of mmpretrain with a fraction of the images of each class.

    The images are the same in every process and every run, and those of a smaller fraction are among those of a
    larger one. For configs: `dict(type='bioattn_mm.class_balanced_part', fraction=0.1, dataset=dict(...))`.

    Args:
        dataset: Config of the dataset.
        fraction: Above 0, at most 1. The number of images of a class is rounded, and at least 1.
        seed: Chooses the images.

    Raises:
        InputError: The fraction is out of range, or the images do not have one class each.
    """
    if not 0 < fraction <= 1:
        raise InputError(f'the fraction of a dataset must be above 0 and at most 1, got {fraction}')
    whole = MMENGINE_DATASETS.build(dataset)
    if not hasattr(whole, 'get_gt_labels'):
        raise InputError(f'{type(whole).__name__} says of no image which class it is of: it has no balanced part')
    whole.full_init()
    labels = whole.get_gt_labels()
    chosen = []
    for label in np.unique(labels):
        of_class = np.random.default_rng([seed, int(label)]).permutation(np.flatnonzero(labels == label))
        chosen.extend(of_class[: max(1, round(fraction * len(of_class)))].tolist())
    print_log(f'{len(chosen):,} of {len(whole):,} images, {fraction:g} of those of each class', 'current')
    whole.get_subset_(sorted(chosen))
    return whole
