"""Exponential moving average of the weights, for models that are sharded as well."""

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
    """Average the weights over the iterations; validate with the average, and save it.

    mmengine's hook copies the model, which a sharded one does not allow. This one keeps the average of the
    parameters in a dict, in float32 and whole on every rank, and works with every strategy; buffers are those of the
    model. A sharded model is gathered at each update, which costs about as much communication as a forward pass.

    Checkpoints are those of mmengine's hook: the average under `state_dict`, the weights that training goes on with
    under `ema_state_dict`.

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
        if not self.average:  # nothing was resumed
            with whole_parameters(runner.model) as parameters:
                self.average = {name: parameter.float().clone() for name, parameter in parameters}

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if self.every_n_train_iters(runner, self.interval):
            with whole_parameters(runner.model) as parameters:
                for name, parameter in parameters:
                    self.average[name].lerp_(parameter.float(), self.momentum)

    def before_val_epoch(self, runner: Runner) -> None:
        self._swap(runner.model)

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        self._swap(runner.model)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        state_dict = checkpoint['state_dict']
        if state_dict:  # of a sharded model, rank 0 alone has it
            checkpoint['ema_state_dict'] = {f'module.{name}': value for name, value in state_dict.items()}
            state_dict.update({name: average.cpu() for name, average in self.average.items()})

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        weights = checkpoint.get('ema_state_dict')
        if weights is None or not runner._resume:
            return
        names = {name for name, _ in unwrapped(runner.model).named_parameters()}
        names = {plain(name) for name in names}
        device = next(runner.model.parameters()).device
        state_dict = checkpoint['state_dict']
        self.average = {name: state_dict[name].to(device, copy=True) for name in names}
        state_dict.update({name: weights[f'module.{name}'] for name in names})

    @torch.no_grad()
    def _swap(self, model: nn.Module) -> None:
        """Exchange the model's parameters and the average."""
        with whole_parameters(model, writeback=True) as parameters:
            for name, parameter in parameters:
                current = parameter.float().clone()
                parameter.copy_(self.average[name])
                self.average[name] = current


@contextmanager
def whole_parameters(model: nn.Module, writeback: bool = False) -> Iterator[list[tuple[str, Tensor]]]:
    """Context with the parameters of a model by their names in it, whole even if the model is sharded.

    Args:
        model: The model, in whatever wrapper.
        writeback: Whether the shards take over what is changed.
    """
    sharded = isinstance(model, FullyShardedDataParallel)
    gathered = FullyShardedDataParallel.summon_full_params(model, writeback=writeback) if sharded else nullcontext()
    with gathered:
        yield [(plain(name), parameter.detach()) for name, parameter in unwrapped(model).named_parameters()]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model in its wrapper."""
    return model.module if is_model_wrapper(model) else model


def plain(name: str) -> str:
    """The name that a parameter has before the model is sharded."""
    return name.replace('_fsdp_wrapped_module.', '')
