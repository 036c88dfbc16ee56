"""Exponential moving average of the weights, also of a sharded model."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel

from ..errors import InputError
from ..registry import HOOKS


@HOOKS.register_module()
class ShardableEMAHook(Hook):
    """Average the weights over the iterations; the average is validated and saved.

    mmengine's hook copies the model, which is impossible if it is sharded. This one keeps the average of the
    parameters in a dict, unsharded and in float32 on every rank, and works with every strategy; buffers are those of
    the model. A sharded model is gathered at each update, which costs about as much communication as a forward pass.

    Checkpoints are like those of mmengine's hook: the average under `state_dict`, the weights that training continues
    with under `ema_state_dict`.

    Args:
        momentum: Weight of the newest parameters in the average, between 0 and 1.
        interval: Iterations between two updates.
    """

    priority = 'NORMAL'

    def __init__(self, momentum: float = 0.0002, interval: int = 1) -> None:
        if not 0 < momentum < 1:
            raise InputError(f'momentum of ShardableEMAHook must be between 0 and 1, got {momentum}')
        self.momentum = momentum
        self.interval = interval
        self.average: dict[str, Tensor] = {}

    def before_train(self, runner: Runner) -> None:
        if not self.average:  # not a resumed run
            with full_parameters(runner.model) as parameters:
                self.average = {name: parameter.float().clone() for name, parameter in parameters}

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if self.every_n_train_iters(runner, self.interval):
            with full_parameters(runner.model) as parameters:
                for name, parameter in parameters:
                    self.average[name].lerp_(parameter.float(), self.momentum)

    def before_val_epoch(self, runner: Runner) -> None:
        self._swap(runner.model)

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        self._swap(runner.model)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        state_dict = checkpoint['state_dict']
        if state_dict:  # empty on the other ranks if the model is sharded
            checkpoint['ema_state_dict'] = {f'module.{name}': value for name, value in state_dict.items()}
            state_dict.update({name: average.cpu() for name, average in self.average.items()})

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        weights = checkpoint.get('ema_state_dict')
        if weights is None or not runner._resume:
            return
        names = {unsharded_name(name) for name, _ in unwrapped(runner.model).named_parameters()}
        device = next(runner.model.parameters()).device
        state_dict = checkpoint['state_dict']
        self.average = {name: state_dict[name].to(device, copy=True) for name in names}
        state_dict.update({name: weights[f'module.{name}'] for name in names})

    @torch.no_grad()
    def _swap(self, model: nn.Module) -> None:
        """Exchange the model's parameters and the average."""
        with full_parameters(model, writeback=True) as parameters:
            for name, parameter in parameters:
                current = parameter.float().clone()
                parameter.copy_(self.average[name])
                self.average[name] = current


@contextmanager
def full_parameters(model: nn.Module, writeback: bool = False) -> Iterator[list[tuple[str, Tensor]]]:
    """Context with the names and the full parameters of a model, which are gathered if it is sharded.

    Args:
        model: The model, with or without a wrapper.
        writeback: Whether changes of the parameters are written to the shards.
    """
    sharded = isinstance(model, FullyShardedDataParallel)
    gathered = FullyShardedDataParallel.summon_full_params(model, writeback=writeback) if sharded else nullcontext()
    with gathered:
        yield [(unsharded_name(name), parameter.detach()) for name, parameter in unwrapped(model).named_parameters()]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model without its wrapper."""
    return model.module if is_model_wrapper(model) else model


def unsharded_name(name: str) -> str:
    """The name of a sharded model's parameter in the model before sharding."""
    return name.replace('_fsdp_wrapped_module.', '')
