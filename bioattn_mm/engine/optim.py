"""Learning rate and weight decay by parameter."""

import logging

from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor
from torch import nn

from ..registry import OPTIM_WRAPPER_CONSTRUCTORS


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class CombinedRulesConstructor(DefaultOptimWrapperConstructor):
    """mmengine's constructor, except that every rule of `paramwise_cfg` that fits a parameter counts.

    In mmengine the longest custom key in a parameter's name hides the other rules, so that
    `custom_keys=dict(backbone=dict(lr_mult=0.1))` puts the weight decay back on the backbone's norms, whatever
    `norm_decay_mult` says. Here `lr_mult` and `decay_mult` of all matching keys multiply each other and what the
    rules for norms, biases and so on have set.

    Args:
        optim_wrapper_cfg (dict): Config of the optimizer wrapper.
        paramwise_cfg (dict, optional): As in mmengine's constructor; custom keys hold `lr_mult` and `decay_mult`.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        super().__init__(optim_wrapper_cfg, paramwise_cfg)
        self.custom_keys = self.paramwise_cfg.get('custom_keys', {})
        # Empty, but there: without any rule mmengine does not call `add_params`.
        self.paramwise_cfg = {**self.paramwise_cfg, 'custom_keys': {}}

    def add_params(self, params: list[dict], module: nn.Module, prefix: str = '', **kwargs) -> None:
        """Append one group for every parameter of the module and its children."""
        super().add_params(params, module, prefix=prefix, **kwargs)
        if prefix:  # a child: its parent goes on
            return
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        for group in params:
            name = names[id(group['params'][0])]
            rules = [rule for key, rule in self.custom_keys.items() if key in name]
            for multiplier, value, default in (
                ('lr_mult', 'lr', self.base_lr),
                ('decay_mult', 'weight_decay', self.base_wd),
            ):
                for rule in rules:
                    if multiplier in rule:
                        group[value] = group.get(value, default) * rule[multiplier]
            if rules:
                changed = {key: value for key, value in group.items() if key != 'params'}
                print_log(f'paramwise_options -- {name}: {changed}', 'current', logging.INFO)
