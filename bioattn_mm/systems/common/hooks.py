"""Whether others look at the calls of layers, and the parameters of layers that are not called."""

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from ...ops.arguments import full_precision, without_autocast
from ...ops.portable import is_portable, is_traced, is_transformed

# The hooks of many layers are read by these in a fraction of the calls of `has_hooks`, which torch.compile can trace.
HOOKS = [attrgetter(f'_{name}_hooks') for name in ('forward', 'forward_pre', 'backward', 'backward_pre')]
# Hooks that compute the weight of a layer from other tensors before each of its calls.
WEIGHT_HOOKS = (BasePruningMethod, SpectralNorm, WeightNorm)
# Layers below some modules: the path of each, its exact class (an adapter derives its own), and parameters of it.
Layers = Sequence[tuple[tuple[str, ...], type, Iterable[str]]]


def has_hooks(*modules: nn.Module) -> bool:
    """Whether a call of one of some modules is more than its forward pass."""
    return any(
        module._forward_pre_hooks or module._forward_hooks or module._backward_hooks or module._backward_pre_hooks
        for module in modules
    )


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a call of a layer is no more than the forward pass of its kind, which kernels may compute instead.

    It is more for a layer of a derived class, such as a quantised one or one with adapters, and for one with hooks.
    """
    return type(layer) is kind and not has_hooks(layer)


def is_eager(x: Tensor) -> bool:
    """Whether nothing looks into the model that runs now, of which `x` are tokens."""
    looks = is_traced() or is_portable() or is_transformed() or _has_any_global_hook()
    return type(x) is Tensor and not looks and forward_ad._current_level < 0


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


def parameters_of(modules: Sequence[nn.Module], wanted: Layers, *others: nn.Module) -> list[list[Tensor]] | None:
    """Parameters of the same layers of several modules, to compute with them instead of calling the layers.

    Returns:
        A column for each parameter, with that of each module; None where a layer, or one of the `others`, is more
        than its class, such as one with hooks: then all have to be called.
    """
    layers, columns = [*others], []
    try:
        for path, kind, names in wanted:
            found = modules
            for name in path:
                found = [layer._modules[name] for layer in found]
            if {*map(type, found)} != {kind}:
                return None
            layers += found
            columns += [[layer._parameters[name] for layer in found] for name in names]
    except KeyError:  # a replica of DataParallel has no parameters, and an ablation may lack one
        return None
    # A hook expects the call of its layer, and so does who has put another `forward` in its place.
    if any(any(map(hooks, layers)) for hooks in HOOKS) or [layer for layer in layers if 'forward' in layer.__dict__]:
        return None
    # Parameters of other types are parts of tensors, as FSDP2 has them.
    others = [layer._parameters.values() for layer in others]
    return columns if {*map(type, chain(*columns, *others))} <= {nn.Parameter, Tensor} else None


def stacked_parameters(modules: Sequence[nn.Module], wanted: Layers, *others: nn.Module) -> list[Tensor] | None:
    """The columns of `parameters_of` as tensors; None also where some are frozen, whose layers need no gradients."""
    columns = parameters_of(modules, wanted, *others)
    if columns is None or not all(parameter.requires_grad for parameter in chain(*columns)):
        return None
    return [torch.stack(column) for column in columns]
