"""Runs of several processes: joining the others, and strategies other than data parallel."""

import os
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import torch
from mmengine.config import Config

from ..errors import InputError
from .installed import find_config
from .pipelines import type_name

# Variables of the environment with the rank of a process and the number of all, by launcher.
RANK_VARIABLES = dict(
    pytorch=('RANK', 'WORLD_SIZE'),
    slurm=('SLURM_PROCID', 'SLURM_NTASKS'),
    mpi=('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE'),
)

# Seconds after which collective operations fail in a config that does not say; PyTorch's own, for NCCL.
DEFAULT_TIMEOUT = 600

# mmengine's strategy of a process that is alone.
SINGLE_DEVICE = 'SingleDeviceStrategy'
# This hook gathers the weights that FSDP divides before a validation, because processes with more images than others
# would wait there for them.
GATHER = dict(type='bioattn_mm.GatherForValidationHook')


def rank_and_size(launcher: str) -> tuple[int, int]:
    """The rank of this process and the number of processes, also before they have joined."""
    rank, size = RANK_VARIABLES.get(launcher, ('', ''))
    return int(os.environ.get(rank, 0)), int(os.environ.get(size, 1))


def prepare_process(config: Config, launcher: str) -> None:
    """Prepare one of the processes that a launcher started; on the CPU if there is no GPU.

    mmengine requires a GPU for each process. If PyTorch finds none, the process joins the others here, over gloo, and
    the config gets a model wrapper for the CPU, which also makes SyncBN work there.

    Args:
        config: The config of the run, changed in place if there is no GPU, or a single process and a strategy for
            several.
        launcher: 'none', 'pytorch', 'slurm' or 'mpi'.

    Raises:
        InputError: The launcher did not start this process, or there is no GPU for it.
    """
    if launcher == 'none':
        # The config of a work dir may have a strategy that divides the model; a single process has all of it.
        if type_name(config.get('strategy')) not in ('', SINGLE_DEVICE):
            config.pop('strategy')
            config.pop('runner_type', None)
            config.custom_hooks = [hook for hook in config.get('custom_hooks', []) if hook != GATHER]
        return
    if launcher == 'pytorch' and 'RANK' not in os.environ:
        raise InputError(
            '--launcher pytorch is for the processes of torchrun: start them with tools/dist_train.sh or '
            'tools/dist_test.sh'
        )
    if torch.cuda.is_available():
        # mmengine reads the variable also with mpi, which has a name of its own for it; slurm's it sets itself.
        own = os.environ.get('OMPI_COMM_WORLD_LOCAL_RANK', '0')
        local_rank, num_gpus = int(os.environ.setdefault('LOCAL_RANK', own)), torch.cuda.device_count()
        if launcher == 'pytorch' and local_rank >= num_gpus:
            raise InputError(
                f'no GPU for process {local_rank} of this machine: start at most {num_gpus}, one for each GPU'
            )
        return
    if launcher != 'pytorch':
        raise InputError(
            f'--launcher {launcher} needs GPUs, and PyTorch finds none: tools/dist_train.sh also runs on the CPU'
        )
    timeout = config.get('env_cfg', {}).get('dist_cfg', {}).get('timeout', DEFAULT_TIMEOUT)
    torch.distributed.init_process_group('gloo', timeout=timedelta(seconds=timeout))
    wrapper = dict(
        type='bioattn_mm.CPUDistributedDataParallel',
        broadcast_buffers=False,
        find_unused_parameters=config.get('find_unused_parameters', False),
    )
    config.model_wrapper_cfg = {**wrapper, **config.get('model_wrapper_cfg', {}), 'device_ids': None}


def set_strategy(config: Config, path: str, options: dict[str, object] | None = None) -> None:
    """Merge a strategy, such as `configs/_base_/strategies/fsdp.py`, into the config of a run.

    Args:
        config: Changed in place; its `launcher` is set.
        path: Config file with `runner_type` and `strategy`.
        options: Values by dotted key, of which those of the strategy go before what the file says.

    Raises:
        InputError: The file does not exist or holds no strategy, DeepSpeed is needed and not installed or cannot do
            what the config says, or the run has a single process.
    """
    path = find_config(path)
    if not Path(path).is_file():
        raise InputError(f'strategy not found: {path}')
    strategy = Config.fromfile(path)
    if 'strategy' not in strategy or 'runner_type' not in strategy:
        raise InputError(f'{path} is not a strategy: expected a config with runner_type and strategy')
    if 'DeepSpeed' in strategy.strategy.type and find_spec('deepspeed') is None:
        raise InputError(f"{path} needs DeepSpeed, which is not installed: pip install 'bioattn_mm[deepspeed]'")
    if config.get('launcher', 'none') == 'none':
        raise InputError(
            f'--strategy {path} is for several processes: tools/dist_train.sh CONFIG NUMBER --strategy {path}'
        )
    config.merge_from_dict(strategy.to_dict())
    config.merge_from_dict({key: value for key, value in (options or {}).items() if key.startswith('strategy.')})
    config.setdefault('env_cfg', {})  # FlexibleRunner needs one
    if 'sync_bn' in config:
        config.strategy.sync_bn = config.sync_bn
    if 'DeepSpeed' in config.strategy.type:
        _set_deepspeed(config)
    if 'FSDP' in config.strategy.type:
        config.custom_hooks = [*config.get('custom_hooks', []), GATHER]
        if _is_bfloat16(config.optim_wrapper):
            config.strategy.setdefault('param_dtype', 'bfloat16')


def _is_bfloat16(wrapper: dict) -> bool:
    """Whether an optimizer's wrapper trains in mixed precision with bfloat16."""
    kind = wrapper.get('type')
    return (
        kind == 'bioattn_mm.BFloat16OptimWrapper' or kind == 'AmpOptimWrapper' and wrapper.get('dtype') == 'bfloat16'
    )


def _set_deepspeed(config: Config) -> None:
    """Translate the options of mmengine's optimizer wrappers to DeepSpeed's config."""
    wrapper, strategy = config.optim_wrapper, config.strategy
    kind = wrapper.pop('type', 'OptimWrapper')
    wrapper.type = 'DeepSpeedOptimWrapper'
    if kind in ('AmpOptimWrapper', 'bioattn_mm.BFloat16OptimWrapper'):
        dtype = wrapper.pop('dtype', 'float16') if kind == 'AmpOptimWrapper' else 'bfloat16'
        wrapper.pop('loss_scale', None)
        if dtype != 'bfloat16':
            raise InputError(f'with DeepSpeed, mixed precision is bfloat16, got {dtype}: --amp bfloat16')
        # Autocast keeps the weights in float32, as mmengine's wrapper does.
        strategy.config.torch_autocast = dict(enabled=True, dtype=dtype)
    clip_grad = wrapper.pop('clip_grad', None)
    if clip_grad:
        if clip_grad.get('norm_type', 2) != 2 or 'max_norm' not in clip_grad:
            raise InputError(
                f'DeepSpeed clips gradients by their L2 norm alone: expected clip_grad with max_norm, got '
                f'{dict(clip_grad)}'
            )
        strategy.gradient_clipping = clip_grad.max_norm
    strategy.gradient_accumulation_steps = wrapper.pop('accumulative_counts', 1)
    strategy.train_micro_batch_size_per_gpu = config.train_dataloader.batch_size
