"""Hooks of training."""

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner

from ..errors import InputError
from ..registry import HOOKS


@HOOKS.register_module()
class CompileBackboneHook(Hook):
    """Compile the model's backbone with `torch.compile` before the first step.

    Only the backbone, because the losses of detectors are full of shapes that depend on the data. The parameters keep
    their names, so that checkpoints are the same with and without it. Each input size is compiled for itself; beyond
    PyTorch's limit of recompilations, new sizes run without.

    Args:
        backend: Compiler backend of `torch.compile`.
    """

    def __init__(self, backend: str = 'inductor') -> None:
        self.backend = backend

    def before_train(self, runner: Runner) -> None:
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        if not hasattr(model, 'backbone'):
            raise InputError(f'--compile compiles the backbone of a model, and {type(model).__name__} has none')
        model.backbone.compile(backend=self.backend, dynamic=False)
        print_log(f'backbone compiled with {self.backend} at the first step of each input size', logger='current')
