"""How a run computes: random numbers, mixed precision, compilation, CUDA graphs."""

import os

import torch
from mmengine.config import Config

from ...errors import InputError
from ..amp import autocast_dtype
from ..cuda_graphs import set_cuda_graphs
from .distributed import set_strategy
from .pipelines import add_hook

# Wrappers of an optimizer that --amp takes.
WRAPPERS = ('OptimWrapper', 'AmpOptimWrapper', 'bioattn_mm.BFloat16OptimWrapper')


def set_computation(
    config: Config,
    *,
    amp: str | None = None,
    strategy: str | None = None,
    compile: str | None = None,
    cuda_graphs: int | None = None,
    options: dict[str, object] | None = None,
) -> None:
    """Set precision, strategy, compilation and CUDA graphs of a training, as `tools/train.py` names them."""
    if amp:
        _set_amp(config, amp)
    if strategy and cuda_graphs:
        raise InputError('--cuda-graphs goes with data parallel alone: leave out --strategy')
    if strategy:
        set_strategy(config, strategy, options)
    if config.optim_wrapper.get('type') == 'AmpOptimWrapper' and not torch.cuda.is_available():
        raise InputError("the config's AmpOptimWrapper needs a GPU: on the CPU add --amp bfloat16")
    if compile:
        known = torch.compiler.list_backends(exclude_tags=())
        if compile not in known:
            raise InputError(f'torch.compile has no backend {compile!r}: expected one of {", ".join(known)}')
        # Images of detectors have many sizes; those of others have one in training.
        dynamic = True if config.default_scope == 'mmdet' else None
        add_hook(config, 'CompileHook', backend=compile, dynamic=dynamic)
    set_cuda_graphs(config, cuda_graphs)


def _set_amp(config: Config, dtype: str) -> None:
    autocast_dtype(dtype, 'cuda' if torch.cuda.is_available() else 'cpu')
    wrapper = config.optim_wrapper
    kind = wrapper.get('type', 'OptimWrapper')
    if kind not in WRAPPERS:
        raise InputError(f'--amp needs an optim_wrapper of type OptimWrapper, this config has {kind}')
    if dtype == 'float16':
        wrapper.update(type='AmpOptimWrapper', dtype=dtype)
        wrapper.setdefault('loss_scale', 'dynamic')
        return
    wrapper.type = 'bioattn_mm.BFloat16OptimWrapper'
    wrapper.pop('dtype', None)
    wrapper.pop('loss_scale', None)


def set_randomness(config: Config, deterministic: bool) -> None:
    """Use deterministic operations if asked for. Without a seed in the config the Runner draws one."""
    config.randomness = {'seed': None, **config.get('randomness', {})}
    if deterministic:
        config.randomness.deterministic = True
        # cuBLAS is deterministic only if this is set before it starts.
        os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
