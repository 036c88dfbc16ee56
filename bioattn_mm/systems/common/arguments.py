"""Checks of the layers' arguments, and the precision that sensitive computations run in."""

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from ...errors import InputError
from ...ops.arguments import without_autocast

# Hooks that compute the weight of a layer from other tensors before each of its calls.
WEIGHT_HOOKS = (BasePruningMethod, SpectralNorm, WeightNorm)


def head_dims_of(embed_dims: int, num_heads: int) -> int:
    """Width of each attention head; raises an `InputError` unless `num_heads` divides `embed_dims`."""
    if embed_dims % num_heads:
        raise InputError(f'embed_dims must be a multiple of num_heads, got {embed_dims} and {num_heads}')
    return embed_dims // num_heads


def full_precision(x: Tensor) -> Tensor:
    """Convert half precision to float32; float32 and float64 stay as they are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def weight_and_bias(module: nn.Module) -> tuple[Tensor, Tensor]:
    """Parameters of a linear, convolution or normalisation layer in `full_precision`.

    Of a linear layer with an adapter, or a quantised one, those of the linear map that a call of it is.
    """
    if 'in_features' in module.__dict__ and type(module).forward is not nn.Linear.forward:
        like = module.weight if isinstance(module.weight, Tensor) else torch.empty(0)
        with without_autocast(like):
            bias = module(like.new_zeros(1, module.in_features))
            weight = module(torch.eye(module.in_features, dtype=like.dtype, device=like.device)) - bias
        return full_precision(weight.T), full_precision(bias[0])
    if module._forward_pre_hooks:
        # The hooks run here because the layer is not called: its weight would be that of an earlier step.
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, WEIGHT_HOOKS):
                hook(module, ())
    weight, bias = module.weight, module.bias
    is_full = weight.dtype == bias.dtype and weight.dtype in (torch.float32, torch.float64)
    return (weight, bias) if is_full else (full_precision(weight), full_precision(bias))
