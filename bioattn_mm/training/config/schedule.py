"""How long a training takes, `--epochs`, and the learning rates of training from random weights."""

import contextlib
import copy
import io
import itertools
import math

from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope

from ...errors import InputError
from .classes import leaf_dataset_configs
from .pipelines import as_list, find_dicts, type_name

# A warm-up takes as many iterations as the config says, but at most this part of the training.
MAX_WARMUP = 0.1
# Losses are logged at least this often in a training.
MIN_LOGS = 10
WARMUP_TYPES = ('LinearLR', 'ConstantLR')
NEVER = 1000000000  # mmengine's `end` of a scheduler without one

# Random weights need higher rates than the configs', which fine-tune. Decoders with queries take a lower one than
# others, and so do classifiers, which have hardly anything but the backbone.
LEARNING_RATE = 1e-3
CLASSIFICATION_LEARNING_RATE = 4e-4
QUERY_LEARNING_RATE = 2e-4
QUERY_HEADS = ('decode_head', 'panoptic_head')  # of Mask2Former in mmseg and in mmdet
# The first rate is for trainings of up to so many steps. Longer ones take a lower one, but none below the least.
SHORT_STEPS = 200
LEAST_LEARNING_RATE = 1e-4


def set_epochs(config: Config, epochs: int, num_processes: int = 1) -> int:
    """Let a config, whose training data exist, train for a number of epochs, with its schedule in proportion.

    Its learning rate stays, but for training from random weights: `set_scratch_rate`.

    A warm-up keeps its number of iterations, up to a tenth of the training; what comes after it fills the rest as in
    the config. All schedulers count iterations then. A loop that counts iterations validates and saves as often in
    the whole training as before, but at most once an epoch.

    Returns:
        Number of iterations of an epoch.

    Raises:
        InputError: The training data are empty, or the config has schedulers for several optimizers.
    """
    iterations = _steps_of_epoch(config, num_processes)
    total = epochs * iterations
    schedulers = as_list(config.get('param_scheduler'))
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
    """Number of iterations of a training; if it counts epochs, and those of one are not known, its data are read."""
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
    """mmengine's schedulers for a training of `total` iterations.

    `old` is the length of the training that they were made for, in epochs if `counts_epochs`, else in iterations.
    """
    warmups = [
        scheduler['end']
        for scheduler in schedulers
        if type_name(scheduler) in WARMUP_TYPES
        and scheduler.get('begin', 0) == 0
        and not scheduler.get('by_epoch', True)
        and scheduler.get('end', NEVER) < (NEVER if counts_epochs else old)
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
        if 'periods' in scheduler:  # of restarts, one after the other
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


def start_from_scratch(config: Config) -> None:
    """Let a config train from random weights, with one learning rate for all parameters.

    The rate was found with the miniature runs' 2 images a step (classifiers: 16); see `set_scratch_rate`, too.
    """
    model = config.model
    model.pop('pretrained', None)
    model.backbone.init_cfg = None
    if config.get('load_from'):  # of a whole model
        config.load_from = None
    if isinstance(model.get('init_cfg'), dict) and model.init_cfg.get('type') == 'Pretrained':
        model.init_cfg = None
    # A backbone that knows nothing yet learns as fast as the rest of the model.
    for rules in find_dicts(config.optim_wrapper.get('paramwise_cfg')):
        rules.update({key: 1.0 for key in ('lr_mult', 'layer_decay_rate') if key in rules})
    if 'auto_scale_lr' in config:
        config.auto_scale_lr.enable = False
    rate = CLASSIFICATION_LEARNING_RATE if config.default_scope == 'mmpretrain' else LEARNING_RATE
    config.optim_wrapper.optimizer.lr = QUERY_LEARNING_RATE if _has_queries(config) else rate


def set_scratch_rate(config: Config, num_processes: int, steps_of_epoch: int | None) -> None:
    """Let the learning rate from random weights fall with the square root of the number of steps.

    So does the best step size of stochastic gradient descent: 1e-3 for 200 steps, 1e-4 for 20,000 and more. The rates
    of classifiers and of models with queries stay.
    """
    if config.default_scope != 'mmpretrain' and not _has_queries(config):
        rate = LEARNING_RATE * min(1, math.sqrt(SHORT_STEPS / num_steps(config, num_processes, steps_of_epoch)))
        config.optim_wrapper.optimizer.lr = float(f'{max(LEAST_LEARNING_RATE, rate):.2g}')


def _has_queries(config: Config) -> bool:
    model = config.model
    return 'num_queries' in model or any('num_queries' in model.get(key, {}) for key in QUERY_HEADS)
