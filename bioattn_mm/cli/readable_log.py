"""A short training log: one table of the optimizer's groups instead of lines for every parameter."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from mmengine.hooks import Hook
from mmengine.logging import MMLogger, print_log
from mmengine.optim import BaseOptimWrapper
from mmengine.runner import Runner
from rich.table import Table
from torch import nn

from ..engine.ema import unwrapped
from ..engine.health import table_text
from ..run_config.runner import without_initial_values


@dataclass
class OptimizerGroup:
    """Parameters that share a learning rate and a weight decay.

    Attributes:
        lr: Base learning rate, which the schedule scales.
        weight_decay: Weight decay.
        num_parameters: Number of values in all tensors.
        names: Names of the tensors in the model.
    """

    lr: float
    weight_decay: float
    num_parameters: int = 0
    names: list[str] = field(default_factory=list)


def optimizer_groups(model: nn.Module, optim_wrapper: BaseOptimWrapper) -> list[OptimizerGroup]:
    """The parameter groups of an optimizer, merged if their values are equal, by falling learning rate."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups: dict[tuple[float, float], OptimizerGroup] = {}
    for param_group in optim_wrapper.optimizer.param_groups:
        key = (param_group.get('initial_lr', param_group['lr']), param_group['weight_decay'])
        group = groups.setdefault(key, OptimizerGroup(*key))
        for parameter in param_group['params']:
            group.num_parameters += parameter.numel()
            group.names.append(names.get(id(parameter), '?'))
    return sorted(groups.values(), key=lambda group: (-group.lr, -group.weight_decay))


def groups_table(groups: list[OptimizerGroup]) -> str:
    """The groups as a table of text."""
    table = Table(title='learning rate and weight decay', title_justify='left')
    for column in ('learning rate', 'weight decay', 'tensors', 'parameters'):
        table.add_column(column, justify='right')
    table.add_column('for example', no_wrap=True)
    for group in groups:
        values = f'{group.lr:.3g}', f'{group.weight_decay:g}', str(len(group.names)), f'{group.num_parameters:,}'
        table.add_row(*values, group.names[0])
    return table_text(table)


class OptimizerGroupsHook(Hook):
    """Logs the optimizer's groups as one table when training starts."""

    def before_train(self, runner: Runner) -> None:
        print_log('\n' + groups_table(optimizer_groups(unwrapped(runner.model), runner.optim_wrapper)), 'current')


@contextmanager
def readable_log(runner: Runner) -> Iterator[None]:
    """Context in which a Runner logs the optimizer's groups as one table, and no line for every parameter.

    mmengine logs each rule of `paramwise_cfg` for every parameter, and after `init_weights` how every parameter was
    initialised: thousands of lines, which are kept if the config has `log_level = 'DEBUG'`.
    """
    runner.register_hook(OptimizerGroupsHook())
    with ExitStack() as undo:
        if runner.cfg.get('log_level') != 'DEBUG':
            logger = MMLogger.get_current_instance()
            logger.addFilter(_is_wanted)
            undo.callback(logger.removeFilter, _is_wanted)
            # FlexibleRunner builds the model only in `train`.
            undo.enter_context(without_initial_values())
        yield


def _is_wanted(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith('paramwise_options')
