"""Learning rate and weight decay of each parameter, in as few groups of the optimizer as there are settings."""

import logging

from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor
from torch import nn

from ..registry import OPTIM_WRAPPER_CONSTRUCTORS

BACKBONE = 'backbone.'


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class MergedGroupsConstructor(DefaultOptimWrapperConstructor):
    """mmengine's constructor, with one group for all parameters of the same learning rate and weight decay.

    mmengine makes a group of every parameter, so that fused and foreach optimizers, which update the tensors of a
    group together, update one after the other. The updates are the same. A checkpoint whose optimizer has other
    groups is refused when a run is resumed from it.
    """

    def add_params(self, params: list[dict], module: nn.Module, prefix: str = '', **kwargs) -> None:
        super().add_params(params, module, prefix=prefix, **kwargs)
        if prefix:  # mmengine calls this for every child; the groups are complete after the model's own call
            return
        self.adjust(params, module)
        merged: list[tuple[dict, dict]] = []  # settings, and the group that has them
        for group in params:
            settings = dict(lr=self.base_lr, weight_decay=self.base_wd) | group | dict(params=None)
            same = next((other for known, other in merged if known == settings), None)
            if same is None:
                merged.append((settings, {**group, 'params': list(group['params'])}))
            else:
                same['params'] += group['params']
        params[:] = [group for _, group in merged]

    def adjust(self, groups: list[dict], model: nn.Module) -> None:
        """Change the groups of a model, one for each parameter, before they are merged; here nothing."""


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class CombinedRulesConstructor(MergedGroupsConstructor):
    """Merges groups as `MergedGroupsConstructor`, and all rules of `paramwise_cfg` that match a parameter apply.

    In mmengine the longest custom key in a parameter's name replaces the other rules, such as `norm_decay_mult`. Here
    `lr_mult` and `decay_mult` of all matching keys are multiplied with each other and with the rules for norms,
    biases and so on.

    Args:
        optim_wrapper_cfg (dict): Config of the optimizer wrapper.
        paramwise_cfg (dict, optional): As in mmengine's constructor; custom keys have `lr_mult` and `decay_mult`.
            In addition, `layer_decay_rate` (float, default 1) is the factor of the learning rate from each layer of
            the backbone to the one before it, with the layers of its method `get_layer_depth`, as in mmpretrain; and
            parameters with one of `new_parameters` (list[str]) in their names get the optimizer's learning rate.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        super().__init__(optim_wrapper_cfg, paramwise_cfg)
        self.custom_keys = self.paramwise_cfg.get('custom_keys', {})
        self.layer_decay_rate = self.paramwise_cfg.get('layer_decay_rate', 1.0)
        self.new_parameters = self.paramwise_cfg.get('new_parameters', [])
        # mmengine must not apply the custom keys, but calls `add_params` only if there is some rule.
        self.paramwise_cfg = {**self.paramwise_cfg, 'custom_keys': {}}

    def adjust(self, groups: list[dict], model: nn.Module) -> None:
        backbone = getattr(model, 'backbone', None)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        for group in groups:
            name = names[id(group['params'][0])]
            before = dict(group)
            for rule in (rule for key, rule in self.custom_keys.items() if key in name):
                if 'lr_mult' in rule:
                    group['lr'] = group.get('lr', self.base_lr) * rule['lr_mult']
                if 'decay_mult' in rule:
                    group['weight_decay'] = group.get('weight_decay', self.base_wd) * rule['decay_mult']
            if self.layer_decay_rate != 1 and name.startswith(BACKBONE):
                depth, num_layers = backbone.get_layer_depth(name, BACKBONE)
                group['lr'] = group.get('lr', self.base_lr) * self.layer_decay_rate ** (num_layers - 1 - depth)
            if any(key in name for key in self.new_parameters):
                group['lr'] = self.base_lr
            if group != before:
                changed = {key: value for key, value in group.items() if key != 'params'}
                print_log(f'paramwise_options -- {name}: {changed}', 'current', logging.INFO)
