"""Backbone and neck of a model through `torch.compile`."""

import logging

import torch
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner
from torch import nn

from ..errors import InputError
from ..registry import HOOKS
from .ema import unwrapped

# What of a model is compiled, and captured as CUDA graphs. The heads are not: shapes in the losses of detectors
# depend on the data.
PARTS = ('backbone', 'neck')


@HOOKS.register_module()
class CompileHook(Hook):
    """Compile the model's backbone and neck with `torch.compile` before the first step.

    The parameters keep their names, so that checkpoints are the same with and without this hook. What cannot be
    compiled runs without, after one line in the log.

    Args:
        backend: Compiler backend of `torch.compile`.
        dynamic: Whether the first size is compiled for all sizes at once, as detectors want it. None compiles for
            that size alone, and at the second one, if there is one, for all.
    """

    def __init__(self, backend: str = 'inductor', dynamic: bool | None = None) -> None:
        self.backend = backend
        self.dynamic = dynamic

    def before_train(self, runner: Runner) -> None:
        names = compile_parts(unwrapped(runner.model), self.backend, self.dynamic)
        sizes = 'for all sizes of images' if self.dynamic else 'for its size, and at another size for all'
        print_log(f'{" and ".join(names)} compiled with {self.backend} at the first step, {sizes}', 'current')


def compile_parts(model: nn.Module, backend: str, dynamic: bool | None) -> list[str]:
    """Compile backbone and neck of a model in place, each at its first call.

    Args:
        model: A model of mmdet, mmseg or mmpretrain, without its wrapper.
        backend: As in `CompileHook`.
        dynamic: As in `CompileHook`.

    Returns:
        The names of what is compiled.

    Raises:
        InputError: The model has no backbone.
    """
    if not hasattr(model, 'backbone'):
        raise InputError(f'--compile needs a model with a backbone: {type(model).__name__} has none')
    parts = {name: getattr(model, name, None) for name in PARTS}
    parts = {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
    for name, part in parts.items():
        _compile(part, name, backend, dynamic)
    return list(parts)


def _compile(module: nn.Module, name: str, backend: str, dynamic: bool | None) -> None:
    """Compile a module in place, unless it fails."""
    module.compile(backend=backend, dynamic=dynamic)
    compiled = module._compiled_call_impl

    def call(*args: object, **kwargs: object) -> object:
        try:
            # The backward pass is compiled with the forward pass, so that both fail here.
            with torch._functorch.config.patch(force_non_lazy_backward_lowering=True):
                return compiled(*args, **kwargs)
        except Exception as error:
            if not isinstance(error, torch._dynamo.exc.TorchDynamoException):
                raise
            reason = str(error).strip().partition('\n\n')[0].replace('\n', ' ')
            print_log(f'{name} runs without being compiled, which failed: {reason}', 'current', logging.WARNING)
            module._compiled_call_impl = None
            return module(*args, **kwargs)

    module._compiled_call_impl = call
