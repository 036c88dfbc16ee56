"""Synchronized batch norm on the CPU."""

import torch
from mmengine.model import MMDistributedDataParallel
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.modules.batchnorm import _BatchNorm

from ..registry import MODEL_WRAPPERS


class CPUSyncBatchNorm(_BatchNorm):
    """Synchronized batch norm over gloo; PyTorch's SyncBatchNorm works on GPUs only.

    The statistics are those of the images of all processes together, whose sizes may differ between processes. All
    runs of `tools/dist_train.sh` on machines without a GPU have it, and with it the tests that compare one process
    with several under DDP, FSDP and DeepSpeed: with statistics of each process, none of them would be equal.
    """

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
        self._update_running_statistics(mean.detach(), var.detach() * count / (count - 1))
        scale = torch.rsqrt(var + self.eps)
        if self.affine:
            x = centred * (scale * self.weight).view(channel_shape) + self.bias.view(channel_shape)
        else:
            x = centred * scale.view(channel_shape)
        return x.to(dtype)

    def _update_running_statistics(self, mean: Tensor, unbiased_var: Tensor) -> None:
        if not self.track_running_stats:
            return
        self.num_batches_tracked += 1
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(unbiased_var, momentum)


def synchronise_on_cpu(model: nn.Module) -> nn.Module:
    """Replace PyTorch's and mmengine's SyncBatchNorm in a model by `CPUSyncBatchNorm`, in place; return the model."""
    for module in model.modules():
        if isinstance(module, nn.SyncBatchNorm):
            # The object stays the same, so that its parameters, buffers and references to it stay valid.
            module.__class__ = CPUSyncBatchNorm
    return model


@MODEL_WRAPPERS.register_module()
class CPUDistributedDataParallel(MMDistributedDataParallel):
    """mmengine's DDP wrapper for training on the CPU; SyncBatchNorm works there, too.

    Args:
        module: The model.
        **kwargs: Arguments of mmengine's wrapper.
    """

    def __init__(self, module: nn.Module, **kwargs) -> None:
        super().__init__(synchronise_on_cpu(module), **kwargs)
