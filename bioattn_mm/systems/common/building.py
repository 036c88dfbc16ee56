"""Building a layer that a config names: how a backbone is composed of other parts than its own, as for ablations."""

import inspect
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ...errors import InputError
from ...registry import MODELS


def build_layer(settings: Mapping, **known: object) -> nn.Module:
    """Build a layer from its settings and from what is known of the place that it is for.

    Args:
        settings: `type`, a class or its name in the registry `MODELS` ('bioattn_mm.GLU' or 'GLU'), and arguments of
            the class. These come before the known ones.
        known: What the backbone knows of the place, such as `embed_dims` and `num_heads`. The class gets those that
            its `__init__` has arguments for.

    Raises:
        InputError: There is no such type, it has no such argument, or it lacks one.
    """
    layer, parameters = _class_and_arguments(settings)
    own = {name: value for name, value in settings.items() if name != 'type'}
    unknown = [name for name in own if name not in parameters]
    if unknown:
        expected = ', '.join(parameters)
        raise InputError(f'{layer.__name__} has no argument {", ".join(unknown)}: expected some of {expected}')
    arguments = {name: value for name, value in known.items() if name in parameters} | own
    lacking = [name for name, value in parameters.items() if name not in arguments and value.default is value.empty]
    if lacking:
        raise InputError(f'{layer.__name__} needs {", ".join(lacking)}, which is not known at its place')
    return layer(**arguments)


def takes(settings: Mapping, argument: str) -> bool:
    """Whether the class of a layer's settings has an argument of that name."""
    return argument in _class_and_arguments(settings)[1]


def _class_and_arguments(settings: Mapping) -> tuple[type, dict[str, inspect.Parameter]]:
    """The class of a layer's settings, and its arguments that have names of their own."""
    if not isinstance(settings, Mapping):
        raise InputError(f'the settings of a layer must be a dict with its type, got {settings!r}')
    kind = settings.get('type')
    layer = MODELS.get(kind) if isinstance(kind, str) else kind
    if not inspect.isclass(layer):
        raise InputError(f'the type of a layer must be a class or its name in the registry of models, got {kind!r}')
    unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return layer, {n: p for n, p in inspect.signature(layer).parameters.items() if p.kind not in unnamed}


def one_for_each(name: str, value: object, kind: type, number: int) -> Sequence:
    """The values of an argument `name` for each stage: one value of type `kind` stands for that of all.

    Raises:
        InputError: There are fewer or more values than stages.
    """
    values = (value,) * number if isinstance(value, kind) else value
    if not isinstance(values, Sequence) or len(values) != number or not all(isinstance(one, kind) for one in values):
        raise InputError(f'{name} must be one {kind.__name__} or {number} of them, got {value!r}')
    return values


def replace_by_zeros(module: nn.Module, *names: str) -> None:
    """Make parameters of a module constants of zero, neither trained nor saved: an ablation without them."""
    for name in names:
        zeros = torch.zeros_like(getattr(module, name), requires_grad=False)
        delattr(module, name)
        module.register_buffer(name, zeros, persistent=False)
