"""Training a config on a fraction of its data."""

import math
from pathlib import Path

from mmengine.config import Config, ConfigDict

from ..errors import InputError
from .pipelines import type_name

# Arguments of a scheduler that are numbers of epochs, where it counts epochs.
EPOCHS = ('begin', 'end', 'T_max', 'step_size', 'milestones', 'periods')


def set_fraction(config: Config, fraction: float) -> None:
    """Train on a fraction of the images of each class, for as many more epochs.

    The protocol of ConViT (table 2), which measures how much data a model needs: it keeps a fraction f of each class
    and trains for 1 / f times the epochs, so that the network sees as many images as in the whole training. PerViT
    (table 4) keeps parts of each class, too. Both take the first files of a class by name; here they are drawn. The
    epochs of the schedule, of validation and of checkpoints grow with those of training. A training whose length is a
    number of iterations sees as many images as it is.

    Args:
        config: Changed in place.
        fraction: Above 0, at most 1.

    Raises:
        InputError: The fraction is out of range, or the config has no classification dataset.
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
    schedulers = config.get('param_scheduler') or []
    for scheduler in schedulers if isinstance(schedulers, list) else [schedulers]:
        if scheduler.get('by_epoch', True):
            scheduler.update({key: scaled(scheduler[key]) for key in EPOCHS if key in scheduler})
            if type_name(scheduler) == 'ExponentialLR':
                scheduler.gamma **= fraction
    checkpoint = config.default_hooks.get('checkpoint') or {}
    if checkpoint.get('by_epoch', True) and checkpoint.get('interval', -1) > 0:
        checkpoint.interval = scaled(checkpoint.interval)
