"""One of several processes that train or test a model together."""

import os
from datetime import timedelta

import torch
from mmengine.config import Config

from ..errors import InputError


def prepare_process(config: Config, launcher: str) -> None:
    """Make a config fit to run in this process, one of those that a launcher started; on the CPU if there is no GPU.

    mmengine gives each process a GPU of its own, and cannot do without. Where PyTorch sees none, the process joins
    the others here, over gloo, the model is wrapped for the CPU, and its SyncBN made to work there.

    Args:
        config: The config of the run, changed in place where there is no GPU.
        launcher: 'none', 'pytorch', 'slurm' or 'mpi'.

    Raises:
        InputError: The launcher did not start this process, or there is no GPU for it.
    """
    if launcher == 'none':
        return
    if launcher == 'pytorch' and 'RANK' not in os.environ:
        raise InputError(
            '--launcher pytorch is for the processes of torchrun: start them with tools/dist_train.sh or '
            'tools/dist_test.sh'
        )
    if torch.cuda.is_available():
        number, num_gpus = int(os.environ['LOCAL_RANK']), torch.cuda.device_count()
        if launcher == 'pytorch' and number >= num_gpus:
            raise InputError(
                f'no GPU for process {number} of this machine: start at most {num_gpus}, one for each GPU'
            )
        return
    if launcher != 'pytorch':
        raise InputError(
            f'--launcher {launcher} needs GPUs: none is visible to PyTorch; tools/dist_train.sh does not'
        )
    timeout = config.get('env_cfg', {}).get('dist_cfg', {}).get('timeout', 1800)
    torch.distributed.init_process_group('gloo', timeout=timedelta(seconds=timeout))
    wrapper = dict(
        type='bioattn_mm.CPUDistributedDataParallel',
        broadcast_buffers=False,
        find_unused_parameters=config.get('find_unused_parameters', False),
    )
    config.model_wrapper_cfg = {**wrapper, **config.get('model_wrapper_cfg', {}), 'device_ids': None}
