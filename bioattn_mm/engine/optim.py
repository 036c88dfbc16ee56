"""Learning rate and weight decay of each parameter."""

import logging

from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor
from torch import nn

from ..errors import InputError
from ..registry import OPTIM_WRAPPER_CONSTRUCTORS

BACKBONE = 'backbone.'


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class CombinedRulesConstructor(DefaultOptimWrapperConstructor):
    """mmengine's constructor, except that all rules of `paramwise_cfg` that match a parameter apply.

    In mmengine the longest custom key in a parameter's name replaces the other rules:
    `custom_keys=dict(backbone=dict(lr_mult=0.1))` turns the weight decay of the backbone's norms on again, whatever
    `norm_decay_mult` says. Here `lr_mult` and `decay_mult` of all matching keys are multiplied with each other and
    with the rules for norms, biases and so on.

    Args:
        optim_wrapper_cfg (dict): Config of the optimizer wrapper.
        paramwise_cfg (dict, optional): As in mmengine's constructor; custom keys have `lr_mult` and `decay_mult`.
            In addition:

            - `layer_decay_rate` (float): factor of the learning rate from each layer of the backbone to the one
              before it, with the layers of its method `get_layer_depth`, as in mmpretrain. Default: 1.
            - `new_parameters` (list[str]): parts of names of parameters that are not pre-trained. They get the
              optimizer's learning rate; no other rule lowers it.

    Raises:
        InputError: There is a `layer_decay_rate`, and the backbone has no `get_layer_depth`.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        super().__init__(optim_wrapper_cfg, paramwise_cfg)
        self.custom_keys = self.paramwise_cfg.get('custom_keys', {})
        self.layer_decay_rate = self.paramwise_cfg.get('layer_decay_rate', 1.0)
        self.new_parameters = self.paramwise_cfg.get('new_parameters', [])
        # mmengine must not apply the custom keys, but calls `add_params` only if there is some rule.
        self.paramwise_cfg = {**self.paramwise_cfg, 'custom_keys': {}}

    def add_params(self, params: list[dict], module: nn.Module, prefix: str = '', **kwargs) -> None:
        """Append one group for every parameter of the module and its children."""
        super().add_params(params, module, prefix=prefix, **kwargs)
        if prefix:  # mmengine calls this for every child; the groups are complete after the model's own call
            return
        backbone = getattr(module, 'backbone', None)
        if self.layer_decay_rate != 1 and not hasattr(backbone, 'get_layer_depth'):
            raise InputError(
                f'layer_decay_rate needs a backbone with get_layer_depth, and {type(backbone).__name__} has none: '
                'leave it out of paramwise_cfg'
            )
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        for group in params:
            name = names[id(group['params'][0])]
            before = dict(group)
            for key, rule in self.custom_keys.items():
                if key in name:
                    for multiplier, value, default in (
                        ('lr_mult', 'lr', self.base_lr),
                        ('decay_mult', 'weight_decay', self.base_wd),
                    ):
                        if multiplier in rule:
                            group[value] = group.get(value, default) * rule[multiplier]
            if self.layer_decay_rate != 1 and name.startswith(BACKBONE):
                depth, num_layers = backbone.get_layer_depth(name, BACKBONE)
                group['lr'] = group.get('lr', self.base_lr) * self.layer_decay_rate ** (num_layers - 1 - depth)
            if any(key in name for key in self.new_parameters):
                group['lr'] = self.base_lr
            if group != before:
                changed = {key: value for key, value in group.items() if key != 'params'}
                print_log(f'paramwise_options -- {name}: {changed}', 'current', logging.INFO)
