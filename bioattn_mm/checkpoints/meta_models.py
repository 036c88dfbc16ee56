"""Models without values: names and shapes of what they hold, in a fraction of the time and without the memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# The methods that initial weights are drawn with, which change nothing but values.
INITIALISE = {'add_', 'clamp_', 'div_', 'erfinv_', 'fill_', 'mul_', 'normal_', 'sub_', 'uniform_', 'zero_'}


@contextmanager
def on_meta() -> Iterator[None]:
    """Within, modules are built on the meta device, without the initialisation that takes most of the time.

    `torch.linspace` gives numbers: mmdet's Swin and mmpretrain's ConvNeXt read stochastic depth out of it.
    """
    with torch.device('meta'), _WithoutInitialValues():
        yield


class _WithoutInitialValues(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.linspace:
            kwargs.setdefault('device', 'cpu')
        tensor = args[0] if args else kwargs.get('tensor')
        if getattr(function, '__name__', '') in INITIALISE and isinstance(tensor, Tensor) and tensor.is_meta:
            return tensor
        return function(*args, **kwargs)
