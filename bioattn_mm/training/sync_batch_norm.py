"""Synchronized batch norm on the CPU."""

import torch
from mmengine.model import MMDistributedDataParallel
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.modules.batchnorm import _BatchNorm

from ..registry import MODEL_WRAPPERS


class CPUSyncBatchNorm(_BatchNorm):
    """Synchronized batch norm over gloo, also of images of different sizes; PyTorch's works on GPUs only."""

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2:
            raise ValueError(f'expected (B, C, ...), got {tuple(x.shape)}')

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, ...) to the same shape and dtype; statistics are float32 at least."""
        if not self.training or not torch.distributed.is_initialized():
            return super().forward(x)
        dtype, x = x.dtype, x.to(torch.promote_types(x.dtype, torch.float32))
        axes = [axis for axis in range(x.dim()) if axis != 1]
        channel_shape = [1, -1] + [1] * (x.dim() - 2)
        sums = all_reduce(torch.cat([x.sum(axes), x.new_tensor([x.numel() // x.shape[1]])]))
        count = sums[-1].detach()
        if count < 2:  # PyTorch's words, for which `known_failure` says what to do
            raise ValueError(f'Expected more than 1 value per channel when training, got input size {x.shape}')
        mean = sums[:-1] / count
        centred = x - mean.view(channel_shape)
        # A second reduction, because the mean square minus the squared mean would lose digits.
        var = all_reduce(centred.square().sum(axes)) / count
        if self.track_running_stats:
            self.num_batches_tracked += 1
            momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.detach(), momentum)
            self.running_var.lerp_(var.detach() * count / (count - 1), momentum)
        scale = torch.rsqrt(var + self.eps)
        if self.affine:
            x = centred * (scale * self.weight).view(channel_shape) + self.bias.view(channel_shape)
        else:
            x = centred * scale.view(channel_shape)
        return x.to(dtype)


def synchronise_on_cpu(model: nn.Module) -> nn.Module:
    """Replace SyncBatchNorm in a model by `CPUSyncBatchNorm`, in place; return the model."""
    for module in model.modules():
        if isinstance(module, nn.SyncBatchNorm):
            # The object stays the same, so that its parameters, buffers and references to it stay valid.
            module.__class__ = CPUSyncBatchNorm
    return model


@MODEL_WRAPPERS.register_module()
class CPUDistributedDataParallel(MMDistributedDataParallel):
    """mmengine's DDP wrapper for training on the CPU; SyncBatchNorm works there, too."""

    def __init__(self, module: nn.Module, **kwargs) -> None:
        super().__init__(synchronise_on_cpu(module), **kwargs)
