"""Learning rate and weight decay by parameter."""

import logging

from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor
from torch import nn

from ..errors import InputError
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
            Besides:

            - `layer_decay_rate` (float): for a plain backbone, whose layers are `model.backbone.blocks`. Each block
              learns at the rate of the block after it times this; what comes before the blocks, at that of the
              first block times this. By default 1: no decay.
            - `new_parameters` (list[str]): parts of names. These parameters learn at the optimizer's own rate,
              whatever lowers that of the backbone: the pre-trained weights do not have them.

    Raises:
        InputError: There is a `layer_decay_rate`, and the backbone has no `blocks`.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        super().__init__(optim_wrapper_cfg, paramwise_cfg)
        self.custom_keys = self.paramwise_cfg.get('custom_keys', {})
        self.layer_decay_rate = self.paramwise_cfg.get('layer_decay_rate', 1.0)
        self.new_parameters = self.paramwise_cfg.get('new_parameters', [])
        # Empty, but there: without any rule mmengine does not call `add_params`.
        self.paramwise_cfg = {**self.paramwise_cfg, 'custom_keys': {}}

    def add_params(self, params: list[dict], module: nn.Module, prefix: str = '', **kwargs) -> None:
        """Append one group for every parameter of the module and its children."""
        super().add_params(params, module, prefix=prefix, **kwargs)
        if prefix:  # a child: its parent goes on
            return
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        layers = layers_to_end(module) if self.layer_decay_rate != 1 else {}
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
            if name in layers:
                group['lr'] = group.get('lr', self.base_lr) * self.layer_decay_rate ** layers[name]
            if any(key in name for key in self.new_parameters):
                group['lr'] = self.base_lr
            if group != before:
                changed = {key: value for key, value in group.items() if key != 'params'}
                print_log(f'paramwise_options -- {name}: {changed}', 'current', logging.INFO)


def layers_to_end(model: nn.Module) -> dict[str, int]:
    """Layers from each parameter of a plain backbone to its end, as `layer_decay_rate` counts them.

    1 for the last block, and as many as there are blocks for the first one; one more for what comes before the blocks
    (patch and position embeddings, the class token). The norm after the last block is not among them.

    Args:
        model: Its `backbone` has `blocks`.

    Returns:
        Layers by the parameter's name in the model.

    Raises:
        InputError: The backbone has no `blocks`.
    """
    blocks = getattr(model.backbone, 'blocks', None)
    if blocks is None:
        raise InputError(
            f'layer_decay_rate is for a plain backbone, with `blocks`; {type(model.backbone).__name__} has none: '
            'leave it out of paramwise_cfg'
        )
    layers = {}
    for name, _ in model.backbone.named_parameters():
        module, _, rest = name.partition('.')
        if module == 'blocks':
            before = int(rest.partition('.')[0])
        elif module == 'pool':  # of VARS in RVT-Ti: between two blocks
            before = model.backbone.pool_before
        elif module == 'norm':
            continue
        else:
            before = -1
        layers[f'backbone.{name}'] = len(blocks) - before
    return layers
