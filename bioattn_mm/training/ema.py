"""Exponential moving average of the weights, also of a sharded model."""

import torch
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from ..errors import InputError
from ..registry import HOOKS


@HOOKS.register_module()
class ShardableEMAHook(Hook):
    """Average the weights over the iterations; the average is validated and saved.

    mmengine's hook copies the model, which is impossible if it is sharded. This one keeps the parameters' average in
    float32, divided among the ranks as they are; buffers are the model's. Checkpoints are as mmengine's: the average
    under `state_dict`, the weights that training continues with under `ema_state_dict`.

    Args:
        momentum: Weight of the newest parameters in the average, between 0 and 1.
        interval: Iterations between two updates.
    """

    priority = 'NORMAL'

    def __init__(self, momentum: float = 0.0002, interval: int = 1) -> None:
        if not 0 < momentum < 1:
            raise InputError(f'momentum of ShardableEMAHook must be between 0 and 1, got {momentum}')
        self.momentum, self.interval = momentum, interval
        self.average: dict[str, Tensor] = {}

    def before_train(self, runner: Runner) -> None:
        if not self.average:  # not a resumed run
            self.average = {name: parameter.float().clone() for name, parameter in parameters_of(runner.model)}

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if self.every_n_train_iters(runner, self.interval):
            for name, parameter in parameters_of(runner.model):
                self.average[name].lerp_(parameter.float(), self.momentum)

    def before_val_epoch(self, runner: Runner) -> None:
        self._swap(runner.model)

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        self._swap(runner.model)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        state_dict = checkpoint['state_dict']
        checkpoint['ema_state_dict'] = {f'module.{name}': value for name, value in state_dict.items()}
        model = unwrapped(runner.model)
        first_names = {parameter: name for name, parameter in model.named_parameters()}
        for name, parameter in model.named_parameters(remove_duplicate=False):  # shared ones have several names
            value = self.average[first_names[parameter]]
            # A sharded model's checkpoint is copied to the CPU as a whole.
            state_dict[name] = value if isinstance(value, DTensor) else value.cpu()

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        weights = checkpoint.get('ema_state_dict')
        if weights is None or not runner._resume:
            return
        state_dict = checkpoint['state_dict']
        for name, parameter in parameters_of(runner.model):
            own = shard_like(state_dict[name], parameter)
            self.average[name] = own.to(parameter.device, torch.float32, copy=True)
        state_dict.update({name: weights[f'module.{name}'] for name in state_dict})

    @torch.no_grad()
    def _swap(self, model: nn.Module) -> None:
        reshard(unwrapped(model))
        for name, parameter in parameters_of(model):
            current = parameter.float().clone()
            parameter.copy_(self.average[name])
            self.average[name] = current


def parameters_of(model: nn.Module) -> list[tuple[str, Tensor]]:
    """The names and parameters of a model, without its wrapper; of a sharded one the `DTensor`s."""
    return [(name, parameter.detach()) for name, parameter in unwrapped(model).named_parameters()]


def unwrapped(model: nn.Module) -> nn.Module:
    return model.module if is_model_wrapper(model) else model


def reshard(model: nn.Module) -> None:
    """Free what is gathered of a model's parameters, if it is sharded, so that changes of its shards take effect."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def shard_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """This rank's part of a whole tensor, divided as a parameter is; the tensor itself if the parameter is whole."""
    if not isinstance(parameter, DTensor) or isinstance(tensor, DTensor) or tensor.shape != parameter.shape:
        return tensor
    # No source rank: each takes its part of its own tensor. The copy lets go of the rest.
    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None).clone()


def local_part(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor: all of one that is not divided."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
