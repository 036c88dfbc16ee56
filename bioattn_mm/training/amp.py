"""Mixed precision: which dtypes a device computes in, and bfloat16 in training and testing, on the CPU, too."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from ..errors import InputError
from ..registry import HOOKS, OPTIM_WRAPPERS

DTYPES = ('float16', 'bfloat16')


def cpu_has_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16, and ATEN_CPU_CAPABILITY allows it; others emulate it slowly."""
    capabilities = torch.cpu.get_capabilities()
    if capabilities.get('avx512_bf16') or capabilities.get('amx_bf16'):
        return torch.backends.cpu.get_cpu_capability() not in ('DEFAULT', 'AVX2')
    return capabilities.get('bf16', False)  # of ARM


def autocast_dtype(name: str, device: str | torch.device) -> torch.dtype:
    """A dtype of mixed precision by its name; an `InputError` if there is none, or the device lacks it."""
    if name not in DTYPES:
        raise InputError(f'amp must be one of {", ".join(DTYPES)}, got {name}')
    if torch.device(device).type == 'cpu':
        if name == 'float16':
            raise InputError('mixed precision in float16 needs a GPU: on the CPU take bfloat16')
        if not cpu_has_bfloat16():
            raise InputError(
                'this CPU has no instructions for bfloat16 (AVX-512 BF16, AMX, or BF16 of ARM), and float32 is '
                'faster on it: leave out mixed precision'
            )
    return getattr(torch, name)


@OPTIM_WRAPPERS.register_module()
class BFloat16OptimWrapper(OptimWrapper):
    """Computes losses in bfloat16 under `torch.autocast`, on a CPU, too; mmengine's AmpOptimWrapper needs a GPU.

    Weights, gradients and the optimizer's state are float32, and the loss is not scaled. Arguments and checkpoints
    are those of OptimWrapper.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        device = next(model.parameters()).device.type
        with super().optim_context(model), torch.autocast(device, torch.bfloat16):
            yield


def in_mixed_precision(step: Callable, device: str, dtype: torch.dtype) -> Callable[[dict], list[BaseDataElement]]:
    """A model's `test_step` or `val_step` that computes under autocast, and whose predictions are float32."""

    def mixed_step(data: dict) -> list[BaseDataElement]:
        with torch.autocast(device, dtype):
            samples = step(data)
        return [in_float32(sample) for sample in samples]

    return mixed_step


@HOOKS.register_module()
class MixedPrecisionTestHook(Hook):
    """Test in mixed precision, 'float16' or 'bfloat16'; metrics get float32."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def before_test(self, runner: Runner) -> None:
        model = runner.model
        device = next(model.parameters()).device
        model.test_step = in_mixed_precision(model.test_step, device.type, autocast_dtype(self.dtype, device))

    def after_test(self, runner: Runner) -> None:
        del runner.model.test_step  # the class's own again


def in_float32(sample: BaseDataElement) -> BaseDataElement:
    """A data sample, changed in place, with float32 instead of float16 and of bfloat16, which NumPy lacks."""
    for name, value in sample.items():
        if isinstance(value, BaseDataElement):
            in_float32(value)
        elif isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16):
            sample.set_field(value.float(), name)
    return sample
