"""What PyTorch has to know about the compiled operators beside their kernels: shapes of results, and gradients.

The schemas are in csrc/schemas.cpp, where names connect an operator with the one of its backward pass. Here is what
the results of both look like, by which PyTorch traces and compiles without running them.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .arguments import autocast_dtype
from .portable import is_traced, is_transformed

Shapes = Callable[..., Tensor | tuple[Tensor, ...]]


def _full_precision(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _like(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Contiguous tensors of these shapes and dtypes: kernels give no others."""
    return tuple(tensor.new_empty(tensor.shape) for tensor in tensors)


def _rounding(query: Tensor, for_backward: bool) -> Tensor:
    """What rounding took from an output, which the backward pass needs."""
    rounds = for_backward and query.dtype in (torch.float16, torch.bfloat16)
    return query.new_empty(query.shape if rounds else 0)


def _add_norm(x: Tensor, *_: Tensor | float | None) -> tuple[Tensor, ...]:
    statistics = (x.new_empty(x.shape[:3], dtype=torch.float32) for _ in range(2))
    return *_like(x, x), *statistics


def _add_norm_backward(
    grad_output: Tensor,
    grad_sum: Tensor | None,
    sum: Tensor,
    mean: Tensor,
    rstd: Tensor,
    factor: Tensor | None,
    weight: Tensor,
) -> tuple[Tensor, ...]:
    return _like(sum, sum, weight, weight, weight)


def _gelu_pool_norm(
    x: Tensor, x_bias: Tensor, weight: Tensor, bias: Tensor, height: int, width: int, eps: float
) -> tuple[Tensor, ...]:
    pooled = (x.new_empty(x.shape[0], height, width, x.shape[3]) for _ in range(2))
    statistics = (x.new_empty(x.shape[0], height, width, dtype=torch.float32) for _ in range(2))
    return *pooled, *statistics


def _aggregated_attention(query: Tensor, *rest: Tensor | bool) -> tuple[Tensor, ...]:
    logsumexp = query.new_empty(query.shape[:4], dtype=_full_precision(query.dtype))
    return *_like(query), logsumexp, _rounding(query, rest[-1])


def _cosine_attention(query: Tensor, *rest: Tensor | bool) -> tuple[Tensor, ...]:
    # Each device has an order of its own for the logsumexp: only how many there are is known. `Size.numel` would make
    # an integer of sizes that are left open.
    logsumexp = query.new_empty(math.prod(query.shape[:4]), dtype=_full_precision(query.dtype))
    return *_like(query), logsumexp, _rounding(query, rest[-1])


def _relative_bias_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float
) -> tuple[Tensor, ...]:
    return *_like(query), bias.new_empty(query.shape[:4])


def _peripheral_attention(
    query: Tensor, key: Tensor, value: Tensor, plane: Tensor, *rest: Tensor | float
) -> tuple[Tensor, ...]:
    return *_like(query), plane.new_empty(query.shape[:3])


def _gated_convolution_backward(
    grad_output: Tensor, x: Tensor, x_bias: Tensor | None, weight: Tensor, bias: Tensor
) -> tuple[Tensor, ...]:
    return *_like(x), bias.new_empty(x.shape[3]), *_like(weight, bias)


# The results of an operator, and those of its backward pass.
OPERATORS: dict[str, tuple[Shapes, Shapes]] = dict(
    add_norm=(_add_norm, _add_norm_backward),
    aggregated_attention=(
        _aggregated_attention,
        lambda grad, *inputs: _like(*inputs[:7], inputs[8]),
    ),
    cosine_attention=(
        _cosine_attention,
        lambda grad, *inputs: _like(*inputs[:7], *inputs[9:11]),
    ),
    gated_convolution=(
        lambda x, x_bias, weight, bias: x.new_empty(*x.shape[:3], weight.shape[0]),
        _gated_convolution_backward,
    ),
    gelu_pool=(
        lambda x, height, width: x.new_empty(x.shape[0], height, width, x.shape[3]),
        lambda grad, x: _like(x)[0],
    ),
    gelu_pool_norm=(
        _gelu_pool_norm,
        lambda grad, x, x_bias, pooled, mean, rstd, weight: _like(x, x_bias, weight, weight),
    ),
    log_cpb_table=(
        lambda vertical, horizontal, hidden_weight, hidden_bias, weight, bias: weight.new_empty(
            *weight.shape[:-1], vertical.shape[0], horizontal.shape[0]
        ),
        lambda grad, vertical, horizontal, hidden_weight, hidden_bias, weight: (
            *_like(hidden_weight, hidden_bias, weight),
            weight.new_empty(weight.shape[:-1]),
        ),
    ),
    peripheral_attention=(
        _peripheral_attention,
        lambda grad, *inputs: _like(*inputs[:10]),
    ),
    relative_bias_attention=(
        _relative_bias_attention,
        lambda grad, *inputs: _like(*inputs[:4]),
    ),
    sliding_window_av=(
        lambda weights, value: _like(value)[0],
        lambda grad, weights, value: _like(weights, value),
    ),
    sliding_window_qk=(
        lambda query, key, bias: query.new_empty(*query.shape[:4], bias.shape[1]),
        lambda grad, query, key: (*_like(query, key), query.new_empty(query.shape[3], grad.shape[4])),
    ),
)


# How many arguments autocast casts to its dtype, from the first on: floating-point tensors except float64. The
# operators that are not here compute in the dtypes that they get.
NUM_CAST = dict(
    aggregated_attention=9,
    peripheral_attention=3,  # position-based attention keeps its precision
    relative_bias_attention=3,  # and so does the bias
    sliding_window_av=2,
    sliding_window_qk=3,
)
# The operators have no second derivatives and none in forward mode: the errors that say so end with this advice.
OTHERWISE = 'try BIOATTN_MM_BACKEND=reference, whose formulas have those of PyTorch'
# Holds what is registered with it as long as it lives.
LIBRARY = torch.library.Library('bioattn_mm', 'FRAGMENT')


def register_autocast(name: str, device: str) -> None:
    """What an operator does under autocast. PyTorch's own function casts all arguments, and to one dtype for good."""
    operator = getattr(torch.ops.bioattn_mm, name).default

    def cast_and_call(*arguments: object) -> Tensor | tuple[Tensor, ...]:
        cast = _cast(name, arguments)
        with torch.autocast(device, enabled=False):
            return operator(*cast)

    LIBRARY.impl(name, cast_and_call, f'Autocast{device.upper()}')


def _cast(name: str, arguments: tuple) -> list:
    """The arguments as the operator takes them under autocast."""
    number = NUM_CAST.get(name, 0)
    return [*(tensor.to(autocast_dtype(tensor)) for tensor in arguments[:number]), *arguments[number:]]


# The functions that `differentiable` calls, by operator: in eager training, and within transforms of torch.func.
FUNCTIONS: dict[str, type[torch.autograd.Function]] = {}
TRANSFORMED: dict[str, type[torch.autograd.Function]] = {}


def differentiable(name: str, *arguments: Tensor | float | None) -> Tensor | tuple[Tensor, ...]:
    """Call an operator of `OPERATORS`.

    In eager training this takes half of the time that PyTorch takes to find the operator's gradient by itself, where
    it asks for the schema in each call. Within the transforms of torch.func it would find none, and it would take
    derivatives in forward mode, which no operator has, for zero.
    """
    if is_transformed():
        return TRANSFORMED[name].apply(*_cast(name, arguments))
    # A graph has the operator, not what is called in training; torch.jit could not save the latter.
    if is_traced() or not (needs_backward(*arguments) or forward_ad._current_level >= 0):
        return getattr(torch.ops.bioattn_mm, name).default(*arguments)
    return FUNCTIONS[name].apply(*_cast(name, arguments))


def needs_backward(*arguments: object) -> bool:
    """Whether there will be a backward pass; within transforms of torch.func, whether there may be one."""
    if not torch.is_grad_enabled():
        return False
    return is_transformed() or any(isinstance(argument, Tensor) and argument.requires_grad for argument in arguments)


def register(name: str) -> None:
    """Register shapes and gradients of an operator, and those of the operator of its backward pass."""
    shapes, shapes_of_backward = OPERATORS[name]
    torch.library.register_fake(f'bioattn_mm::{name}', shapes)
    torch.library.register_fake(f'bioattn_mm::{name}_backward', shapes_of_backward)

    operator = getattr(torch.ops.bioattn_mm, name).default
    backward_operator = getattr(torch.ops.bioattn_mm, f'{name}_backward').default
    schema, schema_of_backward = operator._schema, backward_operator._schema
    arguments = [argument.name for argument in schema.arguments]
    names = arguments + [result.name for result in schema.returns]
    # The first arguments of the backward pass are gradients of as many results, of which the first must be there.
    num_gradients = sum(argument.name.startswith('grad_') for argument in schema_of_backward.arguments)
    # Where its other arguments are among those of the operator and its results; of those that are no tensors also
    # where they are among themselves.
    tensors, others = [], []
    for place, argument in enumerate(schema_of_backward.arguments[num_gradients:], num_gradients):
        found = names.index(argument.name)
        tensors.append(found) if 'Tensor' in str(argument.type) else others.append((place, found))
    # Where the gradients of the arguments are among the results of the backward pass.
    names_of_gradients = [result.name for result in schema_of_backward.returns]
    gradients = [names_of_gradients.index(name) if name in names_of_gradients else None for name in arguments]

    def save(ctx, inputs: tuple, output: Tensor | tuple[Tensor, ...]) -> None:
        values = (*inputs, *output) if isinstance(output, tuple) else (*inputs, output)
        ctx.save_for_backward(*[values[place] for place in tensors])
        ctx.others = [(place, values[found]) for place, found in others]
        ctx.mark_non_differentiable(*values[len(inputs) + num_gradients :])
        ctx.set_materialize_grads(False)

    def backward(ctx, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_outputs = grad_outputs[:num_gradients]
        if grad_outputs[0] is None:  # of zeros
            known = next((grad for grad in grad_outputs if grad is not None), None)
            if known is None:
                return (None,) * len(gradients)
            grad_outputs = (torch.zeros_like(known), *grad_outputs[1:])
        values = [*grad_outputs, *ctx.saved_tensors]
        for place, value in ctx.others:
            values.insert(place, value)
        found = (Backward.apply if is_transformed() else backward_operator)(*values)
        if isinstance(found, Tensor):
            found = (found,)
        return tuple(
            [
                found[place] if needed and place is not None else None
                for place, needed in zip(gradients, ctx.needs_input_grad)
            ]
        )

    def forward(ctx, *inputs: object) -> Tensor | tuple[Tensor, ...]:
        output = operator(*inputs)
        save(ctx, inputs, output)
        return output

    def jvp(ctx, *_: Tensor) -> None:
        raise NotImplementedError(f'bioattn_mm::{name} has no derivative in forward mode; {OTHERWISE}')

    def backward_again(ctx, *_: Tensor) -> None:
        # PyTorch would warn, and take the second derivative for zero.
        raise RuntimeError(f'bioattn_mm::{name}_backward has no derivative, {name} no second one; {OTHERWISE}')

    def function(suffix: str, **methods: Callable) -> type[torch.autograd.Function]:
        methods = {method: staticmethod(run) for method, run in methods.items()}
        return type(name + suffix, (torch.autograd.Function,), dict(methods, generate_vmap_rule=True))

    def forward_alone(*inputs: object) -> Tensor | tuple[Tensor, ...]:
        return operator(*inputs)

    def backward_alone(*values: Tensor | float | None) -> Tensor | tuple[Tensor, ...]:
        return backward_operator(*values)

    # Transforms of torch.func need a forward pass without the context, which takes PyTorch longer elsewhere.
    FUNCTIONS[name] = function('', forward=forward, backward=backward, jvp=jvp)
    TRANSFORMED[name] = function('', forward=forward_alone, setup_context=save, backward=backward, jvp=jvp)
    Backward = function(
        '_backward', forward=backward_alone, setup_context=lambda ctx, inputs, output: None, backward=backward_again
    )
    torch.library.register_autograd(f'bioattn_mm::{name}', backward, setup_context=save)
    torch.library.register_autograd(f'bioattn_mm::{name}_backward', backward_again)


def register_all() -> None:
    """Register what the loaded library lacks."""
    for name in OPERATORS:
        register(name)
    for name in NUM_CAST:
        for device in ('cpu', 'cuda'):
            register_autocast(name, device)
