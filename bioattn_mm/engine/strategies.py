"""Strategies of training: DDP is mmengine's Runner's own; FSDP and DeepSpeed are those of its FlexibleRunner."""

import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from mmengine._strategy import DeepSpeedStrategy, FSDPStrategy
from mmengine.config import Config
from mmengine.dist import barrier, is_main_process
from mmengine.model import convert_sync_batchnorm
from mmengine.optim import BaseOptimWrapper, build_optim_wrapper
from mmengine.runner.checkpoint import weights_to_cpu
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from ..errors import InputError
from ..files import partial_path
from ..registry import STRATEGIES
from .ema import plain
from .sync_batch_norm import synchronise_on_cpu


def set_strategy(config: Config, path: str) -> None:
    """Merge a strategy, such as `configs/_base_/strategies/fsdp.py`, into the config of a run.

    Args:
        config: Changed in place.
        path: Config file with `runner_type` and `strategy`.

    Raises:
        InputError: There is no such file, it has no strategy, the strategy needs a package that is not there, or the
            run has a single process.
    """
    if not Path(path).is_file():
        raise InputError(f'strategy not found: {path}')
    strategy = Config.fromfile(path)
    if 'strategy' not in strategy or 'runner_type' not in strategy:
        raise InputError(f'{path} is no strategy: expected a config with runner_type and strategy')
    if 'DeepSpeed' in strategy.strategy.type and find_spec('deepspeed') is None:
        raise InputError(f"{path} needs DeepSpeed, which is not installed: pip install 'deepspeed<0.19'")
    if config.get('launcher', 'none') == 'none':
        raise InputError(
            f'--strategy {path} is for several processes: tools/dist_train.sh CONFIG NUMBER --strategy {path}'
        )
    config.merge_from_dict(strategy.to_dict())
    if 'sync_bn' in config:
        config.strategy.sync_bn = config.sync_bn
    if 'DeepSpeed' in config.strategy.type:
        _set_deepspeed(config)
    if 'FSDP' in config.strategy.type and not torch.cuda.is_available():
        config.strategy.model_wrapper.device_id = 'cpu'
        # On the CPU, what PyTorch calls offloading gives tensors whose memory is gone.
        config.strategy.state_dict_cfg = dict(
            state_dict_type='FULL_STATE_DICT',
            state_dict_config=dict(type='FullStateDictConfig', rank0_only=True),
            optim_state_dict_config=dict(type='FullOptimStateDictConfig', rank0_only=True),
        )


def _set_deepspeed(config: Config) -> None:
    """Say in DeepSpeed's words what the config says in those of mmengine's optimizer wrappers."""
    wrapper, strategy = config.optim_wrapper, config.strategy
    kind = wrapper.pop('type', 'OptimWrapper')
    wrapper.type = 'DeepSpeedOptimWrapper'
    if kind == 'AmpOptimWrapper':
        dtype = wrapper.pop('dtype', 'float16')
        wrapper.pop('loss_scale', None)
        if dtype != 'bfloat16':
            raise InputError(f'with DeepSpeed, mixed precision is bfloat16, got {dtype}: --amp bfloat16')
        # The weights stay in float32, as with mmengine's wrapper.
        strategy.config.torch_autocast = dict(enabled=True, dtype=dtype)
    clip_grad = wrapper.pop('clip_grad', None)
    if clip_grad:
        if clip_grad.get('norm_type', 2) != 2 or 'max_norm' not in clip_grad:
            raise InputError(f'DeepSpeed clips gradients by their L2 norm; clip_grad is {dict(clip_grad)}')
        strategy.gradient_clipping = clip_grad.max_norm
    strategy.gradient_accumulation_steps = wrapper.pop('accumulative_counts', 1)
    strategy.train_micro_batch_size_per_gpu = config.train_dataloader.batch_size


@STRATEGIES.register_module()
class ParamwiseFSDPStrategy(FSDPStrategy):
    """mmengine's, except that `paramwise_cfg` sees the parameters as they are in the model.

    FSDP makes a flat shard of every parameter, which `flat_decay_mult` would all take for norms and biases: nothing
    would decay. The groups are therefore made before the model is sharded.
    """

    def prepare(self, model: nn.Module | dict, *, optim_wrapper: dict | None = None, **kwargs) -> tuple:
        """Build, wrap and return what the runner needs; the arguments are mmengine's."""
        if isinstance(optim_wrapper, dict):
            if optim_wrapper.get('type') == 'AmpOptimWrapper':
                optim_wrapper.setdefault('use_fsdp', True)
            model = self.convert_model(self.build_model(model))
            model = model if torch.cuda.is_available() else synchronise_on_cpu(model)
            optim_wrapper = build_optim_wrapper(model, optim_wrapper)
        return super().prepare(model, optim_wrapper=optim_wrapper, **kwargs)

    def build_optim_wrapper(
        self, optim_wrapper: BaseOptimWrapper | dict, model: nn.Module | None = None
    ) -> BaseOptimWrapper:
        """Give an optimizer of the whole parameters those of the sharded model, which have the same names."""
        if not isinstance(optim_wrapper, BaseOptimWrapper):
            return super().build_optim_wrapper(optim_wrapper, model)
        parameters = {plain(name): parameter for name, parameter in model.named_parameters()}
        for group in optim_wrapper.optimizer.param_groups:
            group['params'] = [parameters[self.id_to_name[id(parameter)]] for parameter in group['params']]
        return optim_wrapper

    def load_optim_state_dict(self, state_dict: dict) -> None:
        """Load the optimizer's state; mmengine hands it over in the order of an older PyTorch."""
        optimizer = self.optim_wrapper.optimizer
        self.optim_wrapper.load_state_dict(
            FullyShardedDataParallel.optim_state_dict_to_load(self.model, optimizer, state_dict)
        )


@STRATEGIES.register_module()
class AtomicDeepSpeedStrategy(DeepSpeedStrategy):
    """mmengine's, with checkpoints that are there whole or not at all, and that hooks and other tools can read.

    A checkpoint is a folder of what DeepSpeed saves. Its `mp_rank_00_model_states.pt` is at the same time an ordinary
    checkpoint, with `state_dict` and `meta`, which tools/test.py loads. ZeRO stages 1 and 2: with stage 3 no process
    has the whole model.

    Args:
        sync_bn: As in mmengine's other strategies: which library's synchronized batch norm replaces the model's.
        **kwargs: Arguments of mmengine's strategy.
    """

    def __init__(self, *, sync_bn: str | None = None, **kwargs) -> None:
        super().__init__(**kwargs)
        self.sync_bn = sync_bn

    def build_model(self, model: nn.Module | dict) -> nn.Module:
        """Build the model, with synchronized batch norm where it is wanted."""
        model = super().build_model(model)
        model = convert_sync_batchnorm(model, self.sync_bn) if self.sync_bn else model
        return model if torch.cuda.is_available() else synchronise_on_cpu(model)

    def _wrap_model(self, model: nn.Module) -> nn.Module:
        wrapper = super()._wrap_model(model)
        # No business of autograd, which refuses what gloo gathers into views of the parameters.
        wrapper.model.step = torch.no_grad()(wrapper.model.step)
        train = wrapper._run_forward

        def run_forward(data: dict, mode: str) -> object:
            # Predictions are in float32, as with mmengine's wrapper: metrics take no others.
            return train(data, mode) if mode == 'loss' else wrapper.module(**data, mode=mode)

        wrapper._run_forward = run_forward
        return wrapper

    def save_checkpoint(
        self, filename: str, *, extra_ckpt: dict | None = None, callback: Callable | None = None, **kwargs
    ) -> None:
        """Save a folder; the arguments are mmengine's. Hooks change the `state_dict` as in every other strategy."""
        extra = {**(extra_ckpt or {}), 'state_dict': weights_to_cpu(self.model.module.state_dict())}
        if callback is not None:
            callback(extra)
        path = Path(filename)
        partial = partial_path(path)
        super().save_checkpoint(str(partial), extra_ckpt=extra, **kwargs)
        barrier()
        if is_main_process():
            shutil.rmtree(path, ignore_errors=True)
            os.replace(partial, path)
        barrier()

    def resume(self, filename: str, *, callback: Callable | None = None, **kwargs) -> dict:
        """Go on from a folder; the arguments are mmengine's."""
        with torch.serialization.safe_globals(_deepspeed_classes()):
            checkpoint = super().resume(filename, **kwargs)
        if callback is not None:
            callback(checkpoint)
        return checkpoint


def _deepspeed_classes() -> list[type]:
    """What DeepSpeed pickles of itself into the optimizer's state; plain data, like what `unpickling` allows."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]
