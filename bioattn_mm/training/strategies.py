"""Distributed training with FSDP2, through mmengine's FlexibleRunner; its Runner does DDP by itself."""

import copy
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path

import mmengine
import torch
from mmengine._strategy import DDPStrategy
from mmengine.device import get_device
from mmengine.dist import barrier, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.distributed import new_group
from torch.distributed.checkpoint import FileSystemWriter, async_save
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from ..checkpoints import is_sharded, read_checkpoint
from ..checkpoints.files import check_values, plain_checkpoint
from ..checkpoints.sharded import TensorPath, read_sharded, split, write_rest
from ..checkpoints.unpickling import code_refused
from ..registry import HOOKS, STRATEGIES
from ..runtime.files import atomic_path, partial_path
from .amp import in_mixed_precision
from .ema import local_part, reshard, shard_like
from .sync_batch_norm import synchronise_on_cpu


@STRATEGIES.register_module()
class FSDP2Strategy(DDPStrategy):
    """PyTorch's `fully_shard` (FSDP2): parameters, gradients and the optimizer's state are divided among all ranks.

    The units that are gathered together are what the backbone's `block_modules()` returns, and the rest of the model.
    Accumulated gradients are reduced in each iteration.

    Checkpoints are folders (see `checkpoints.sharded`). They are copied to the memory of the CPU, and training goes
    on while all ranks write their parts; a folder gets its name when it is whole. Ordinary checkpoints can be loaded
    and resumed from, too.

    Args:
        param_dtype: Dtype in which the blocks' parameters are gathered, such as 'bfloat16', and in which validation
            computes under autocast. Shards, reduced gradients and the optimizer's state are float32.
        reshard_after_forward: Whether a block's parameters are freed after its forward pass and gathered again for
            its backward pass: less memory, half as many messages again.
        **kwargs: Arguments of mmengine's DDPStrategy.
    """

    def __init__(
        self, *, param_dtype: str | None = None, reshard_after_forward: bool = True, **kwargs: object
    ) -> None:
        super().__init__(**kwargs)
        self.param_dtype = getattr(torch, param_dtype) if param_dtype else None
        self.reshard_after_forward = reshard_after_forward
        self._saving: Future = Future()
        self._saving.set_result(None)

    def _wrap_model(self, model: nn.Module) -> nn.Module:
        model = self.convert_model(model.to(get_device()))
        model = model if torch.cuda.is_available() else synchronise_on_cpu(model)
        device = next(model.parameters()).device.type
        mesh = init_device_mesh(device, (self.world_size,))
        # Autocast decides what is computed in which dtype, so inputs stay as they are.
        policy = MixedPrecisionPolicy(self.param_dtype, torch.float32, cast_forward_inputs=False)
        self.blocks = getattr(getattr(model, 'backbone', None), 'block_modules', list)()
        for block in self.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=self.reshard_after_forward, mp_policy=policy)
        fully_shard(model, mesh=mesh)
        for module in model.modules():
            module.register_load_state_dict_pre_hook(shard_loaded)
        if self.param_dtype is not None:
            model.val_step = in_mixed_precision(model.val_step, device, self.param_dtype)
        # Threads of their own exchange messages of their own while checkpoints are written.
        self._saving_group = new_group(backend='gloo')
        self._saving_thread = ThreadPoolExecutor(1)
        return model

    def gather_blocks(self) -> None:
        """Gather the parameters of all blocks until `free_blocks`: in validation some ranks have more images."""
        for block in self.blocks:
            block.set_reshard_after_forward(False, recurse=False)
            block.unshard()
        self.model.unshard()

    def free_blocks(self) -> None:
        reshard(self.model)
        for block in self.blocks:
            block.set_reshard_after_forward(self.reshard_after_forward, recurse=False)

    def save_checkpoint(
        self,
        filename: str,
        *,
        save_optimizer: bool = True,
        save_param_scheduler: bool = True,
        extra_ckpt: dict | None = None,
        callback: Callable | None = None,
    ) -> None:
        """Copy the state and begin to write it to a folder; all ranks must call this.

        The next call, or `finish_saving`, waits until the folder is there, and raises what went wrong.
        """
        self.finish_saving()
        checkpoint = {**(extra_ckpt or {}), 'state_dict': self.model.state_dict()}
        if save_optimizer:
            checkpoint['optimizer'] = self.optim_state_dict()
        if save_param_scheduler and hasattr(self, 'param_schedulers'):
            checkpoint['param_schedulers'] = self.scheduler_state_dict()
        checkpoint.setdefault('meta', {}).update(
            seed=self.seed, time=time.strftime('%Y%m%d_%H%M%S'), mmengine=mmengine.__version__
        )
        if callback is not None:
            callback(checkpoint)
        tensors, rest = split(checkpoint)
        path = Path(filename)
        written = async_save(
            tensors,
            storage_writer=FileSystemWriter(partial_path(path)),
            process_group=self._saving_group,
            async_stager=DefaultStager(StagingOptions(False, False, False, False)),
        )
        self._saving = self._saving_thread.submit(_complete, written, path, copy.deepcopy(rest))

    def when_saved(self, function: Callable[[], None]) -> None:
        """Call a function, in another thread, when the last checkpoint is whole."""

        def call_after(saving: Future) -> None:
            saving.result()
            function()

        self._saving = self._saving_thread.submit(call_after, self._saving)

    def finish_saving(self, wait: bool = True) -> None:
        """Wait until the last checkpoint is whole on all ranks, or only look; raise what writing it failed with."""
        if wait or self._saving.done():
            self._saving.result()
        if wait:
            barrier()

    def load_checkpoint(
        self, filename: str, *, strict: bool = False, callback: Callable | None = None, **kwargs
    ) -> dict:
        """Load the weights of a checkpoint, sharded or whole, each rank its part; return the rest of it."""
        self.logger.info(f'Load checkpoint from {filename}')
        if is_sharded(filename):
            with code_refused():
                checkpoint = read_sharded(filename, like=self._shard_to_read_into)
            check_values(filename, {name: local_part(value) for name, value in checkpoint['state_dict'].items()})
        else:
            checkpoint = plain_checkpoint(filename, read_checkpoint(filename))
        if callback is not None:
            callback(checkpoint)
        weights = checkpoint.pop('state_dict') if 'state_dict' in checkpoint else checkpoint
        self.load_model_state_dict(weights, strict=strict)
        return checkpoint

    def load_optim_state_dict(self, state_dict: dict) -> None:
        parameters = self._optimized_parameters()
        if len(parameters) > max(state_dict['state'], default=-1):  # the optimizer refuses it otherwise
            for index, state in state_dict['state'].items():
                for name, value in state.items():
                    if isinstance(value, Tensor):
                        state[name] = shard_like(value, parameters[index])
        super().load_optim_state_dict(state_dict)

    def _optimized_parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.optim_wrapper.optimizer.param_groups for parameter in group['params']]

    def _shard_to_read_into(self, path: TensorPath, size: torch.Size, dtype: torch.dtype) -> Tensor | None:
        """Room for this rank's part of a tensor of a checkpoint; None if the model does not divide it."""
        parameter = None
        if path[:2] == ('optimizer', 'state'):
            parameter = dict(enumerate(self._optimized_parameters())).get(path[2])
        elif path[0] in ('state_dict', 'ema_state_dict'):
            parameter = self._parameters.get(path[1].removeprefix('module.'))
        if isinstance(parameter, DTensor) and parameter.shape == size:
            return torch.empty_like(parameter, dtype=dtype)
        return None

    @cached_property
    def _parameters(self) -> dict[str, nn.Parameter]:
        return dict(self.model.named_parameters())


def _complete(written: Future, path: Path, rest: dict) -> None:
    """Wait until all ranks have written their tensors; rank 0 then adds the rest, and gives the folder its name."""
    with atomic_path(path) if is_main_process() else nullcontext() as partial:
        written.result()
        if partial is not None:
            write_rest(partial, rest)


def shard_loaded(module: nn.Module, state_dict: dict, prefix: str, *_: object) -> None:
    """A hook of `load_state_dict` that takes this rank's parts of whole tensors, in place."""
    for name, parameter in module.named_parameters(recurse=False):
        if prefix + name in state_dict:
            state_dict[prefix + name] = shard_like(state_dict[prefix + name], parameter)


@HOOKS.register_module()
class GatherForValidationHook(Hook):
    """Keep the parameters of `FSDP2Strategy` whole during validation."""

    priority = 'LOW'  # the averaged weights have taken the place of the model's by then

    def before_val_epoch(self, runner: Runner) -> None:
        runner.strategy.gather_blocks()

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        runner.strategy.free_blocks()
