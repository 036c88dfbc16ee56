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
    """Compile the model's backbone and neck with `torch.compile`; what cannot be compiled runs without.

    Args:
        backend: Compiler backend of `torch.compile`.
        dynamic: Whether the first size is compiled for all sizes, as detectors want it. None compiles for that size
            alone, and at a second one for all. A backbone that knows no graph for all sizes gets one for each.
    """

    def __init__(self, backend: str = 'inductor', dynamic: bool | None = None) -> None:
        self.backend, self.dynamic = backend, dynamic

    def before_train(self, runner: Runner) -> None:
        names = compile_parts(unwrapped(runner.model), self.backend, self.dynamic)
        print_log(f'{" and ".join(names)} compiled with {self.backend} at the first step', 'current')


def compile_parts(model: nn.Module, backend: str, dynamic: bool | None) -> list[str]:
    """Compile backbone and neck of a model in place, each at its first call, and return their names."""
    if not hasattr(model, 'backbone'):
        raise InputError(f'--compile needs a model with a backbone: {type(model).__name__} has none')
    names = [name for name in PARTS if isinstance(getattr(model, name, None), nn.Module)]
    for name in names:
        module = getattr(model, name)
        # PyTorch simplifies the symbols of GABSwin's sizes for more than twenty minutes.
        of_any_size = getattr(module, 'exports_any_size', True)
        _compile(module, name, backend, dynamic if of_any_size else False)
    return names


def _compile(module: nn.Module, name: str, backend: str, dynamic: bool | None) -> None:
    from torch._inductor import config as inductor  # imported here: it takes a while

    module.compile(backend=backend, dynamic=dynamic)
    compiled = module._compiled_call_impl

    def call(*args: object, **kwargs: object) -> object:
        try:
            # The backward pass is compiled with the forward pass, so that both fail here.
            # Inductor's layout optimisation is off: between convolutions it takes other strides for those of Fourier
            # transforms, whose results are then wrong, as in VARS-S (github.com/pytorch/pytorch/issues/166514).
            with (
                torch._functorch.config.patch(force_non_lazy_backward_lowering=True),
                inductor.patch(layout_optimization=False),
            ):
                return compiled(*args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = str(error).strip().partition('\n\n')[0].replace('\n', ' ')
            print_log(f'{name} runs without being compiled, which failed: {reason}', 'current', logging.WARNING)
            module._compiled_call_impl = None
            return module(*args, **kwargs)

    module._compiled_call_impl = call
