"""A training log that a person can read: one table of the optimizer's groups instead of thousands of lines."""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mmengine.hooks import Hook
from mmengine.logging import MMLogger, print_log
from mmengine.model import BaseModule
from mmengine.optim import BaseOptimWrapper
from mmengine.runner import Runner
from rich.console import Console
from rich.table import Table
from torch import nn

from ..engine.ema import unwrapped


@dataclass
class OptimizerGroup:
    """Parameters that share a learning rate and a weight decay.

    Attributes:
        lr: Learning rate at its highest, before warm-up and decay.
        weight_decay: Weight decay.
        num_parameters: Numbers in these tensors.
        names: Names of the tensors in the model.
    """

    lr: float
    weight_decay: float
    num_parameters: int = 0
    names: list[str] = field(default_factory=list)


def optimizer_groups(model: nn.Module, optim_wrapper: BaseOptimWrapper) -> list[OptimizerGroup]:
    """The groups of an optimizer, those with the same values together, the highest learning rate first."""
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
        table.add_row(
            f'{group.lr:.3g}',
            f'{group.weight_decay:g}',
            str(len(group.names)),
            f'{group.num_parameters:,}',
            group.names[0],
        )
    text = io.StringIO()
    Console(file=text, width=140).print(table)
    return text.getvalue().rstrip()


class OptimizerGroupsHook(Hook):
    """Logs the optimizer's groups as one table when training starts."""

    def before_train(self, runner: Runner) -> None:
        print_log('\n' + groups_table(optimizer_groups(unwrapped(runner.model), runner.optim_wrapper)), 'current')


@contextmanager
def readable_log(runner: Runner) -> Iterator[None]:
    """Context in which a Runner logs the optimizer's groups as one table.

    mmengine logs every rule of `paramwise_cfg` for every parameter, and after `init_weights` how each parameter came
    by its value: thousands of lines. They are kept for `log_level = 'DEBUG'` in the config.
    """
    runner.register_hook(OptimizerGroupsHook())
    logger = MMLogger.get_current_instance()
    if runner.cfg.get('log_level') == 'DEBUG':
        yield
        return

    def is_wanted(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith('paramwise_options')

    dump_init_info = BaseModule._dump_init_info
    BaseModule._dump_init_info = lambda module: None
    logger.addFilter(is_wanted)
    try:
        yield
    finally:
        BaseModule._dump_init_info = dump_init_info
        logger.removeFilter(is_wanted)
