"""Distributed training with FSDP and DeepSpeed, through mmengine's FlexibleRunner; its Runner does DDP by itself."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import torch
from mmengine._strategy import DeepSpeedStrategy, FSDPStrategy
from mmengine.dist import barrier, is_main_process
from mmengine.model import convert_sync_batchnorm
from mmengine.optim import BaseOptimWrapper, build_optim_wrapper
from mmengine.runner.checkpoint import weights_to_cpu
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy

from ..files import atomic_path, partial_path
from ..registry import STRATEGIES
from .ema import unsharded_name
from .sync_batch_norm import synchronise_on_cpu


@contextmanager
def _atomic_checkpoint(filename: str) -> Iterator[str]:
    """Context with a temporary path for all ranks to write at; rank 0 renames it when all of them have written."""
    path = Path(filename)
    with atomic_path(path) if is_main_process() else nullcontext(partial_path(path)) as temporary:
        yield str(temporary)
        barrier()
    barrier()


@STRATEGIES.register_module()
class ParamwiseFSDPStrategy(FSDPStrategy):
    """mmengine's FSDP strategy with parameter-wise options, one unit per backbone block, and atomic checkpoints.

    mmengine builds the optimizer after sharding. Each parameter is a flat shard by then, so that `flat_decay_mult`
    would take all of them for norms and biases, and none would decay. Here the parameter groups are made before.

    The units are what the backbone's `block_modules()` returns; the rest of the model belongs to the outermost unit,
    and so does all of a backbone without that method. An `auto_wrap_policy` in `model_wrapper` replaces this.
    """

    def prepare(self, model: nn.Module | dict, *, optim_wrapper: dict | None = None, **kwargs) -> tuple:
        """Build and wrap the model and build the optimizer; arguments and return value are mmengine's."""
        if isinstance(optim_wrapper, dict):
            if optim_wrapper.get('type') == 'AmpOptimWrapper':
                optim_wrapper.setdefault('use_fsdp', True)
            model = self.convert_model(self.build_model(model))
            model = model if torch.cuda.is_available() else synchronise_on_cpu(model)
            optim_wrapper = build_optim_wrapper(model, optim_wrapper)
        return super().prepare(model, optim_wrapper=optim_wrapper, **kwargs)

    def _wrap_model(self, model: nn.Module) -> nn.Module:
        backbone = getattr(model, 'backbone', None)
        if hasattr(backbone, 'block_modules'):
            policy = partial(lambda_auto_wrap_policy, lambda_fn=set(backbone.block_modules()).__contains__)
            default = dict(type='MMFullyShardedDataParallel', auto_wrap_policy=policy)
            self.model_wrapper = {**default, **(self.model_wrapper or {})}
        return super()._wrap_model(model)

    def build_optim_wrapper(
        self, optim_wrapper: BaseOptimWrapper | dict, model: nn.Module | None = None
    ) -> BaseOptimWrapper:
        """Replace the parameters of an optimizer that was built before sharding by those of the sharded model."""
        if not isinstance(optim_wrapper, BaseOptimWrapper):
            return super().build_optim_wrapper(optim_wrapper, model)
        parameters = {unsharded_name(name): parameter for name, parameter in model.named_parameters()}
        for group in optim_wrapper.optimizer.param_groups:
            group['params'] = [parameters[self.id_to_name[id(parameter)]] for parameter in group['params']]
        return optim_wrapper

    def save_checkpoint(self, filename: str, **kwargs) -> None:
        """Save a checkpoint; the arguments are mmengine's."""
        with _atomic_checkpoint(filename) as temporary:
            super().save_checkpoint(temporary, **kwargs)

    def load_optim_state_dict(self, state_dict: dict) -> None:
        """Load the optimizer's state. mmengine calls PyTorch with the argument order of an older version."""
        optimizer = self.optim_wrapper.optimizer
        self.optim_wrapper.load_state_dict(
            FullyShardedDataParallel.optim_state_dict_to_load(self.model, optimizer, state_dict)
        )


@STRATEGIES.register_module()
class AtomicDeepSpeedStrategy(DeepSpeedStrategy):
    """mmengine's DeepSpeed strategy with atomic checkpoints that hooks can change and other tools can read.

    A checkpoint is the folder that DeepSpeed saves. Its `mp_rank_00_model_states.pt` is also an ordinary checkpoint
    with `state_dict` and `meta`, which tools/test.py loads. This works for ZeRO stages 1 and 2: in stage 3 no process
    has the whole model.

    Args:
        sync_bn: Whose synchronized batch norm replaces the model's batch norm, 'torch' or 'mmcv', as in mmengine's
            other strategies.
        **kwargs: Arguments of mmengine's strategy.
    """

    def __init__(self, *, sync_bn: str | None = None, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.sync_bn = sync_bn

    def build_model(self, model: nn.Module | dict) -> nn.Module:
        """Build the model, with synchronized batch norm if `sync_bn` is set."""
        model = super().build_model(model)
        model = convert_sync_batchnorm(model, self.sync_bn) if self.sync_bn else model
        return model if torch.cuda.is_available() else synchronise_on_cpu(model)

    def _wrap_model(self, model: nn.Module) -> nn.Module:
        wrapper = super()._wrap_model(model)
        # With gradients on, autograd refuses what gloo does in the step: gather the parameters in place, into views.
        wrapper.model.step = torch.no_grad()(wrapper.model.step)
        train = wrapper._run_forward

        def run_forward(data: dict, mode: str) -> object:
            # Predictions are made without autocast, in float32, as with mmengine's wrapper: metrics need that.
            return train(data, mode) if mode == 'loss' else wrapper.module(**data, mode=mode)

        wrapper._run_forward = run_forward
        return wrapper

    def save_checkpoint(
        self, filename: str, *, extra_ckpt: dict | None = None, callback: Callable | None = None, **kwargs
    ) -> None:
        """Save a checkpoint folder; the arguments are mmengine's.

        mmengine does not call `callback` here, by which hooks change the checkpoint, and DeepSpeed writes the weights
        under other names.
        """
        extra = {**(extra_ckpt or {}), 'state_dict': weights_to_cpu(self.model.module.state_dict())}
        if callback is not None:
            callback(extra)
        with _atomic_checkpoint(filename) as temporary:
            super().save_checkpoint(temporary, extra_ckpt=extra, **kwargs)

    def resume(self, filename: str, *, callback: Callable | None = None, **kwargs) -> dict:
        """Resume from a checkpoint folder; the arguments are mmengine's."""
        with torch.serialization.safe_globals(_deepspeed_classes()):
            checkpoint = super().resume(filename, **kwargs)
        if callback is not None:
            callback(checkpoint)
        return checkpoint


def _deepspeed_classes() -> list[type]:
    """DeepSpeed's classes in its checkpoints of the optimizer. They hold data only and are safe to unpickle."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]
