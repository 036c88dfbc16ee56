"""A short training log: one table of the optimizer's groups instead of lines for every parameter."""

import logging
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from mmengine.hooks import Hook
from mmengine.logging import MMLogger, print_log
from mmengine.optim import BaseOptimWrapper
from mmengine.runner import Runner
from rich.table import Table
from torch import nn

from .ema import unwrapped
from .health import table_text
from .runner import without_initial_values


def groups_table(model: nn.Module, optim_wrapper: BaseOptimWrapper) -> str:
    """The optimizer's groups as a table of text, those of equal values in one row, by falling learning rate."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = defaultdict(list)
    for group in optim_wrapper.optimizer.param_groups:
        # The schedule has lowered 'lr'.
        groups[group.get('initial_lr', group['lr']), group['weight_decay']] += group['params']
    table = Table(title='learning rate and weight decay', title_justify='left')
    for column in ('learning rate', 'weight decay', 'tensors', 'parameters'):
        table.add_column(column, justify='right')
    table.add_column('for example')
    for rate, decay in sorted(groups, reverse=True):
        parameters = groups[rate, decay]
        number = sum(parameter.numel() for parameter in parameters)
        example = names.get(id(parameters[0]), '?')
        table.add_row(f'{rate:.3g}', f'{decay:g}', str(len(parameters)), f'{number:,}', example)
    return table_text(table)


class OptimizerGroupsHook(Hook):
    def before_train(self, runner: Runner) -> None:
        print_log('\n' + groups_table(unwrapped(runner.model), runner.optim_wrapper), 'current')


@contextmanager
def readable_log(runner: Runner) -> Iterator[None]:
    """Context in which a Runner logs the optimizer's groups as one table, and no line for every parameter.

    mmengine logs each rule of `paramwise_cfg` for every parameter, and after `init_weights` how every parameter was
    initialised: thousands of lines, which are kept if the config has `log_level = 'DEBUG'`.
    """
    runner.register_hook(OptimizerGroupsHook())
    if runner.cfg.get('log_level') == 'DEBUG':
        yield
        return
    logger = MMLogger.get_current_instance()

    def is_wanted(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith('paramwise_options')

    logger.addFilter(is_wanted)
    try:
        with without_initial_values():  # FlexibleRunner builds the model only in `train`
            yield
    finally:
        logger.removeFilter(is_wanted)
