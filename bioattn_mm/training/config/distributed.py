"""Runs of several processes: joining the others, and strategies other than data parallel."""

import os
from datetime import timedelta
from pathlib import Path

import torch
from mmengine.config import Config

from ...errors import InputError
from ..installed import find_config
from .pipelines import add_hook, remove_hook, type_name

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
# This hook gathers the weights that FSDP divides before a validation, where processes may have different numbers of
# images.
GATHER = 'GatherForValidationHook'


def rank_and_size(launcher: str) -> tuple[int, int]:
    """The rank of this process and the number of processes, also before they have joined."""
    rank, size = RANK_VARIABLES.get(launcher, ('', ''))
    return int(os.environ.get(rank, 0)), int(os.environ.get(size, 1))


def prepare_process(config: Config, launcher: str, trains: bool = True) -> None:
    """Prepare one of the processes that a launcher ('none', 'pytorch', 'slurm' or 'mpi') started.

    mmengine requires a GPU for each. If PyTorch finds none, the process joins the others here, over gloo, and the
    config gets a model wrapper for the CPU, where SyncBN works, too. A single process, and a test, loses the strategy
    for trainings by several that the config of a work dir may have.

    Raises:
        InputError: The launcher did not start this process, or there is no GPU for it.
    """
    if (launcher == 'none' or not trains) and type_name(config.get('strategy')) not in ('', SINGLE_DEVICE):
        config.pop('strategy')
        config.pop('runner_type', None)
        remove_hook(config, GATHER)
    if launcher == 'none':
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

    `options` are values by dotted key; those of the strategy win over the file's.

    Raises:
        InputError: The file does not exist or holds no strategy, or the run has a single process.
    """
    path = find_config(path)
    if not Path(path).is_file():
        raise InputError(f'strategy not found: {path}')
    strategy = Config.fromfile(path)
    if 'strategy' not in strategy or 'runner_type' not in strategy:
        raise InputError(f'{path} is not a strategy: expected a config with runner_type and strategy')
    if config.get('launcher', 'none') == 'none':
        raise InputError(
            f'--strategy {path} is for several processes: tools/dist_train.sh CONFIG NUMBER --strategy {path}'
        )
    config.merge_from_dict(strategy.to_dict())
    config.merge_from_dict({key: value for key, value in (options or {}).items() if key.startswith('strategy.')})
    config.setdefault('env_cfg', {})  # FlexibleRunner needs one
    if 'sync_bn' in config:
        config.strategy.sync_bn = config.sync_bn
    if 'FSDP' in config.strategy.type:
        add_hook(config, GATHER)
        wrapper = config.optim_wrapper
        if wrapper.get('type') == 'bioattn_mm.BFloat16OptimWrapper' or wrapper.get('dtype') == 'bfloat16':
            config.strategy.setdefault('param_dtype', 'bfloat16')
