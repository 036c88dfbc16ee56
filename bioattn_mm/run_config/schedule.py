"""The length of a training: a config's schedule, stretched to a number of epochs."""

import contextlib
import copy
import io
import itertools
import math

from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope

from ..errors import InputError
from .classes import leaf_dataset_configs
from .pipelines import type_name

# A warm-up takes as many iterations as the config says, but at most this part of the training.
MAX_WARMUP = 0.1
# Losses are logged at least this often in a training.
MIN_LOGS = 10
WARMUP_TYPES = ('LinearLR', 'ConstantLR')
NEVER = 1000000000  # mmengine's `end` of a scheduler without one


def set_epochs(config: Config, epochs: int, num_processes: int = 1) -> int:
    """Let a config train for a number of epochs, with its schedule of learning rates in proportion.

    A warm-up keeps its number of iterations, up to a tenth of the training; whatever comes after it, such as the
    decay of the rate and its steps, fills the rest as it does in the config. All schedulers count iterations then. A
    loop that counts iterations validates and saves as often in the whole training as before, but at most once an
    epoch.

    Args:
        config: Changed in place; its training data must exist.
        epochs: Times that each training image is seen, at least 1.
        num_processes: Number of processes, each of which takes the config's batch.

    Returns:
        Number of iterations of an epoch.

    Raises:
        InputError: The training data are empty, or the config has schedulers for several optimizers.
    """
    iterations = _steps_of_epoch(config, num_processes)
    total = epochs * iterations
    schedulers = config.get('param_scheduler') or []
    schedulers = schedulers if isinstance(schedulers, list) else [schedulers]
    if not all('type' in scheduler for scheduler in schedulers):
        raise InputError('--epochs takes a config with one list of schedulers in param_scheduler')
    loop, hooks = config.train_cfg, config.get('default_hooks', {})
    counts_epochs = loop.get('max_epochs') is not None
    old = loop.max_epochs if counts_epochs else loop.max_iters
    if counts_epochs:
        loop.max_epochs = epochs
    else:
        loop.max_iters = total
        loop.val_interval = min(total, max(iterations, round(loop.get('val_interval', 1000) / old * total)))
        if not hooks.get('checkpoint', {}).get('by_epoch', True):
            hooks.checkpoint.interval = loop.val_interval
    if 'logger' in hooks:
        hooks.logger.interval = min(hooks.logger.get('interval', 10), max(1, total // MIN_LOGS))
    config.param_scheduler = _stretched(schedulers, old, total, counts_epochs)
    return iterations


def num_steps(config: Config, num_processes: int = 1, steps_of_epoch: int | None = None) -> int:
    """Number of iterations of a config's training.

    Args:
        config: The config; its training data must exist if it counts epochs.
        num_processes: Number of processes, each of which takes the config's batch.
        steps_of_epoch: Number of iterations of an epoch, if it is known; the training data need not be read then.
    """
    epochs = config.train_cfg.get('max_epochs')
    if epochs is None:
        return config.train_cfg.max_iters
    return epochs * (steps_of_epoch or _steps_of_epoch(config, num_processes))


def _steps_of_epoch(config: Config, num_processes: int) -> int:
    """Number of iterations of an epoch, with the images that the filters of the dataset leave."""
    dataset = copy.deepcopy(config.train_dataloader.dataset)
    for leaf in leaf_dataset_configs(dataset):
        leaf.pipeline = []
    init_default_scope(config.default_scope)
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints
        num_images = len(DATASETS.build(dataset))
    if not num_images:
        raise InputError('no training image is left after the filter of the config (filter_cfg of the dataset)')
    loader = config.train_dataloader
    batch_size, images_of_process = loader.batch_size, math.ceil(num_images / num_processes)
    drops_last = loader.get('drop_last') or (loader.get('batch_sampler') or {}).get('drop_last')
    if not drops_last or config.train_cfg.get('max_epochs') is None:  # a loop that counts iterations has one epoch
        return math.ceil(images_of_process / batch_size)
    if images_of_process < batch_size:
        raise InputError(
            f'{images_of_process} training images a process are less than a batch of {batch_size}, and incomplete '
            'batches are left out (drop_last): lower train_dataloader.batch_size'
        )
    return images_of_process // batch_size


def _stretched(schedulers: list[dict], old: int, total: int, counts_epochs: bool) -> list[dict]:
    """Schedulers of a training of another length.

    Args:
        schedulers: mmengine's schedulers, of which each counts epochs or iterations.
        old: Length of the training that they were made for, in epochs if `counts_epochs`, else in iterations.
        total: Length of the new training in iterations.
        counts_epochs: Unit of `old`.
    """
    warmups = [
        scheduler['end']
        for scheduler in schedulers
        if type_name(scheduler) in WARMUP_TYPES
        and scheduler.get('begin', 0) == 0
        and not scheduler.get('by_epoch', True)
        and scheduler.get('end', NEVER) < (math.inf if counts_epochs else old)
    ]
    old_warmup = max(warmups, default=0)
    warmup = min(old_warmup, int(total * MAX_WARMUP))

    def iteration(time: int, by_epoch: bool) -> int:
        """When in the new training comes what came at this time in the old one."""
        if by_epoch and counts_epochs:
            return round(time / old * total)
        if time <= old_warmup:
            return round(time / old_warmup * warmup) if old_warmup else 0
        if counts_epochs:  # of unknown length in iterations
            return min(time, total)
        return min(total, round(warmup + (time - old_warmup) / (old - old_warmup) * (total - warmup)))

    stretched = []
    for scheduler in schedulers:
        by_epoch = scheduler.get('by_epoch', True)
        new = {key: value for key, value in scheduler.items() if key != 'convert_to_iter_based'}
        new['by_epoch'] = False
        begin = scheduler.get('begin', 0)
        for key in ('begin', 'end'):
            if scheduler.get(key, NEVER) != NEVER:
                new[key] = iteration(scheduler[key], by_epoch)
        if 'milestones' in scheduler:
            new['milestones'] = [iteration(time, by_epoch) for time in scheduler['milestones']]
        for key in ('T_max', 'step_size', 'total_steps'):
            if scheduler.get(key):
                new[key] = max(1, iteration(begin + scheduler[key], by_epoch) - iteration(begin, by_epoch))
        if 'periods' in scheduler:
            # The restarts are one after the other, so that each begins where the one before it ends.
            ends = [iteration(end, by_epoch) for end in itertools.accumulate(scheduler['periods'], initial=begin)]
            new['periods'] = [max(1, second - first) for first, second in itertools.pairwise(ends)]
        if type_name(scheduler) == 'ExponentialLR':
            # It multiplies the rate by gamma in each unit of its time: the product of all units stays.
            units = old if by_epoch or not counts_epochs else total
            new['gamma'] = scheduler['gamma'] ** (units / total)
        # One of a single iteration would never end: mmengine computes its rate at the beginning alone.
        if new.get('end', NEVER) - new.get('begin', 0) > 1:
            stretched.append(new)
    return stretched
