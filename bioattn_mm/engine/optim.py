"""Learning rate and weight decay of each parameter, in as few groups of the optimizer as there are settings."""

import logging

from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapper
from torch import nn
from torch.optim import Optimizer

from ..errors import InputError
from ..registry import OPTIM_WRAPPER_CONSTRUCTORS

BACKBONE = 'backbone.'


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class MergedGroupsConstructor(DefaultOptimWrapperConstructor):
    """mmengine's constructor, with one group for all parameters of the same learning rate and weight decay.

    mmengine makes a group of every parameter, a thousand for a large model. The time to build the optimizer grows
    with their square, and fused and foreach optimizers, which update the tensors of a group together, update one
    after the other. The updates are the same.

    The groups are in the order of their first parameters. A checkpoint whose optimizer has other groups is refused
    in one line when a run is resumed from it.

    Args:
        optim_wrapper_cfg (dict): Config of the optimizer wrapper.
        paramwise_cfg (dict, optional): As in mmengine's constructor.
    """

    def __call__(self, model: nn.Module) -> OptimWrapper:
        """Build the optimizer of a model and its wrapper."""
        wrapper = super().__call__(model)
        wrapper.optimizer.register_load_state_dict_pre_hook(check_groups)
        return wrapper

    def add_params(self, params: list[dict], module: nn.Module, prefix: str = '', **kwargs) -> None:
        """Append the groups of a module and its children to `params`; those of the whole model are merged."""
        super().add_params(params, module, prefix=prefix, **kwargs)
        if prefix:  # mmengine calls this for every child; the groups are complete after the model's own call
            return
        self.adjust(params, module)
        params[:] = self.merged(params)

    def adjust(self, groups: list[dict], model: nn.Module) -> None:
        """Change the groups of a model, one for each parameter, before they are merged; here nothing."""

    def merged(self, groups: list[dict]) -> list[dict]:
        """The groups with those of equal settings in one."""
        defaults = dict(lr=self.base_lr, weight_decay=self.base_wd)
        merged: list[tuple[dict, dict]] = []
        for group in groups:
            settings = {**defaults, **{key: value for key, value in group.items() if key != 'params'}}
            same = next((other for known, other in merged if known == settings), None)
            if same is None:
                merged.append((settings, {**group, 'params': list(group['params'])}))
            else:
                same['params'] += group['params']
        return [group for _, group in merged]


def check_groups(optimizer: Optimizer, state_dict: dict) -> None:
    """Raise an `InputError` if a state that is about to be loaded is of other groups than the optimizer's."""
    saved = [len(group['params']) for group in state_dict['param_groups']]
    own = [len(group['params']) for group in optimizer.param_groups]
    if saved != own:
        raise InputError(
            f'the optimizer of the checkpoint has {len(saved)} groups of {sum(saved)} tensors, this one {len(own)} '
            f'of {sum(own)}: it is of other learning rates and weight decays, or of an earlier bioattn_mm; to start '
            'from its weights alone, replace --resume by --load-from CHECKPOINT'
        )


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class CombinedRulesConstructor(MergedGroupsConstructor):
    """Merges groups as `MergedGroupsConstructor`, and all rules of `paramwise_cfg` that match a parameter apply.

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

    def adjust(self, groups: list[dict], model: nn.Module) -> None:
        """Apply the rules of the custom keys, of the layers and of new parameters to the groups of a model."""
        backbone = getattr(model, 'backbone', None)
        if self.layer_decay_rate != 1 and not hasattr(backbone, 'get_layer_depth'):
            raise InputError(
                f'layer_decay_rate needs a backbone with get_layer_depth, and {type(backbone).__name__} has none: '
                'leave it out of paramwise_cfg'
            )
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        for group in groups:
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
