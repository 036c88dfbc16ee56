"""What PyTorch has to know about the compiled operators beside their kernels: shapes of results, and gradients.

The schemas are in csrc/schemas.cpp, where names connect an operator with the one of its backward pass. Here is what
the results of both look like, by which PyTorch traces and compiles without running them.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .arguments import AUTOCAST, is_autocast
from .portable import is_traced, is_transformed

# Operators that a function of autograd calls skip autograd and autocast, whose work the function does itself.
KEYS = torch._C.DispatchKey
BELOW_AUTOGRAD = AUTOCAST | torch._C.DispatchKeySet(KEYS.ADInplaceOrView)
for _key in (KEYS.AutogradCPU, KEYS.AutogradCUDA, KEYS.AutogradMeta, KEYS.AutogradOther):
    BELOW_AUTOGRAD = BELOW_AUTOGRAD | torch._C.DispatchKeySet(_key)

Shapes = Callable[..., Tensor | tuple[Tensor, ...]]


def _like(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Contiguous tensors of these shapes and dtypes: kernels give no others."""
    return tuple(tensor.new_empty(tensor.shape) for tensor in tensors)


def _attention(query: Tensor, logsumexp: tuple[int, ...], for_backward: bool) -> tuple[Tensor, ...]:
    """The output, logsumexps, and what rounding took from the output, which the backward pass needs."""
    rounds = for_backward and query.dtype in (torch.float16, torch.bfloat16)
    return (
        *_like(query),
        query.new_empty(logsumexp, dtype=torch.promote_types(query.dtype, torch.float32)),
        query.new_empty(query.shape if rounds else 0),
    )


def _norm(x: Tensor, *_: object) -> tuple[Tensor, ...]:
    """The norm of tokens, these, and their means and reciprocal standard deviations."""
    full = torch.promote_types(x.dtype, torch.float32)
    return *_like(x, x), *(x.new_empty(x.shape[:3], dtype=full) for _ in range(2))


def _pooled(x: Tensor, height: int, width: int) -> Tensor:
    return x.new_empty(x.shape[0], height, width, x.shape[3])


def _sparse_codes(
    gram: Tensor, target: Tensor, length: Tensor, penalty: Tensor, num_steps: int, for_backward: bool
) -> tuple[Tensor, ...]:
    """The codes, and for the backward pass those before each step after the first, and its residual."""
    kept = target.new_empty((*target.shape[:2], num_steps, target.shape[2]) if for_backward else 0)
    return *_like(target), *_like(kept, kept)


def _aggregate(x: Tensor, *arguments: object) -> tuple[Tensor, ...]:
    """The output, and for the backward pass joint weight and projections, pooled tokens, and what attention keeps."""
    *_, scale, _, _, _, rows, _, columns, _, _, _, for_backward = arguments
    batch, height, width, channels = x.shape
    of_heads, grid = (scale.shape[0], channels // scale.shape[0]), (rows.shape[1], columns.shape[1])
    output, *of_softmax = _attention(x, (batch * height * width * of_heads[0],), for_backward)
    rounding = of_softmax[1]
    of_softmax[1] = rounding.view(batch, height, width, *of_heads) if rounding.dim() > 1 else rounding
    normed, pooled, *statistics = _norm(x.new_empty(batch, *grid, channels))
    joint = x.new_empty(4 * channels, channels), x.new_empty(batch, height, width, 4, *of_heads)
    return output, *joint, pooled, *statistics, normed, x.new_empty(batch, *grid, 2, *of_heads), *of_softmax


def _after_attention(x: Tensor, *arguments: object) -> tuple[Tensor, ...]:
    """The next norm, the block's tokens, and what the backward pass takes of the norm and ConvGLU in between."""
    fc1_weight, conv_weight = arguments[5], arguments[7]
    if not arguments[-1]:
        return *_like(x, x), *(x.new_empty(0) for _ in range(8))
    between = [x.new_empty(*x.shape[:3], weight.shape[0]) for weight in (fc1_weight, conv_weight)]
    return *_like(x, x), *_norm(x), *between, *_norm(x)[2:]


# The results of an operator.
OPERATORS: dict[str, Shapes] = dict(
    add_norm=_norm,
    after_attention=_after_attention,
    aggregate=_aggregate,
    aggregated_attention=lambda query, *rest: _attention(query, query.shape[:4], rest[-1]),
    # Each device has an order of its own for the logsumexp: only how many there are is known. `Size.numel` would make
    # an integer of sizes that are left open.
    cosine_attention=lambda query, *rest: _attention(query, (math.prod(query.shape[:4]),), rest[-1]),
    deformable_attention=lambda value, shapes, locations, weights: value.new_empty(
        value.shape[0], weights.shape[1], *value.shape[2:]
    ),
    gated_convolution=lambda x, x_bias, weight, bias: x.new_empty(*x.shape[:3], weight.shape[0]),
    gelu_pool=_pooled,
    gelu_pool_norm=lambda x, weight, bias, height, width, eps: _norm(_pooled(x, height, width)),
    log_cpb_table=lambda vertical, horizontal, hidden_weight, hidden_bias, weight, bias: weight.new_empty(
        *weight.shape[:-1], vertical.shape[0], horizontal.shape[0]
    ),
    peripheral_attention=lambda query, key, value, plane, *_: (*_like(query), plane.new_empty(query.shape[:3])),
    relative_bias_attention=lambda query, key, value, bias, *_: (*_like(query), bias.new_empty(query.shape[:4])),
    sliding_window_av=lambda weights, value: _like(value)[0],
    sliding_window_qk=lambda query, key, bias: query.new_empty(*query.shape[:4], bias.shape[1]),
    sparse_codes=_sparse_codes,
)

# A gradient looks like the argument of the backward pass that has its name, or like what this makes of all of them.
GRADIENTS: dict[str, dict[str, Callable[[dict], Tensor]]] = dict(
    add_norm={
        **dict.fromkeys(('x', 'branch'), lambda given: _like(given['sum'])[0]),
        'branch_bias': lambda given: given['sum'].new_empty(given['sum'].shape[3]),
        'bias': lambda given: _like(given['weight'])[0],
    },
    after_attention=dict(x=lambda given: _like(given['sum'])[0]),
    gated_convolution=dict(x_bias=lambda given: given['bias'].new_empty(given['x'].shape[3])),
    gelu_pool_norm=dict(bias=lambda given: _like(given['weight'])[0]),
    log_cpb_table=dict(bias=lambda given: given['weight'].new_empty(given['weight'].shape[:-1])),
    sliding_window_qk=dict(
        bias=lambda given: given['query'].new_empty(given['query'].shape[3], given['grad_logits'].shape[4])
    ),
)


# How many arguments, from the first on, autocast casts to its dtype, but float64. Operators that are not here call
# none of PyTorch's that it knows, or run below it.
NUM_CAST = dict(
    aggregated_attention=9,
    peripheral_attention=3,  # position-based attention keeps its precision
    relative_bias_attention=3,  # and so does the bias
    sliding_window_av=2,
    sliding_window_qk=3,
    sparse_codes=0,  # its products of matrices keep their precision
)
CAST_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# The operators have no second derivatives and none in forward mode: the errors that say so end with this advice.
OTHERWISE = 'try BIOATTN_MM_BACKEND=reference, whose formulas have those of PyTorch'


# Holds what is registered with it as long as it lives.
LIBRARY = torch.library.Library('bioattn_mm', 'FRAGMENT')


def _cast(name: str, arguments: tuple) -> Sequence:
    """The arguments as the operator takes them under autocast."""
    number, device = NUM_CAST.get(name, 0), arguments[0].device.type
    if not number or not is_autocast(device):
        return arguments
    dtype = torch.get_autocast_dtype(device)
    cast = [tensor.to(dtype) if tensor.dtype in CAST_DTYPES else tensor for tensor in arguments[:number]]
    return [*cast, *arguments[number:]]


# Functions that make tensors like the results of an operator or of its backward pass, by its name.
RESULTS: dict[str, Shapes] = {}
# The functions that `differentiable` calls, by operator.
FUNCTIONS: dict[str, type[torch.autograd.Function]] = {}


def differentiable(name: str, *arguments: Tensor | float | None) -> Tensor | tuple[Tensor, ...]:
    """Call an operator of `OPERATORS`, in half of the time that PyTorch takes to find its gradient by itself.

    In transforms of torch.func PyTorch would find none, and it would take derivatives in forward mode for zero.
    """
    # A graph has the operator, not what is called in training; torch.jit could not save the latter.
    if is_traced():
        return getattr(torch.ops.bioattn_mm, name).default(*arguments)
    arguments, function = _cast(name, arguments), FUNCTIONS[name]
    if torch._C._are_functorch_transforms_active():
        return function.apply(*arguments)
    if needs_backward(*arguments) or forward_ad._current_level >= 0:
        return apply(function, *arguments)
    return function.forward(*arguments)


def call(name: str, *arguments: Tensor | float | None) -> tuple[Tensor, ...]:
    """Call an operator where nothing looks into what runs, and its arguments have the dtypes of its kernels."""
    function = FUNCTIONS[name]
    return apply(function, *arguments) if torch.is_grad_enabled() else function.forward(*arguments)


def apply(function: type[torch.autograd.Function], *arguments: object) -> Tensor | tuple[Tensor, ...]:
    """`function.apply` where no transform of torch.func runs, without its search for what they may have left."""
    return super(torch.autograd.Function, function).apply(*arguments)


def needs_backward(*arguments: object) -> bool:
    """Whether there will be a backward pass; within transforms of torch.func, whether there may be one."""
    if not torch.is_grad_enabled():
        return False
    for argument in arguments:
        if isinstance(argument, Tensor) and argument.requires_grad:
            return True
    return is_transformed()


def register(name: str) -> None:
    """Register shapes and gradients of an operator, and those of the operator of its backward pass."""
    operator = getattr(torch.ops.bioattn_mm, name).default
    backward_operator = getattr(torch.ops.bioattn_mm, f'{name}_backward').default
    schema, schema_of_backward = operator._schema, backward_operator._schema
    arguments = [argument.name for argument in schema.arguments]
    names = arguments + [result.name for result in schema.returns]
    # The first arguments of the backward pass are gradients of as many results, of which the first must be there.
    num_gradients = sum(argument.name.startswith('grad_') for argument in schema_of_backward.arguments)
    # The index of each other argument among arguments and results of the operator; arguments that are no tensors also
    # have one among those of the backward pass.
    tensors, others = [], []
    for index, argument in enumerate(schema_of_backward.arguments[num_gradients:], num_gradients):
        found = names.index(argument.name)
        tensors.append(found) if 'Tensor' in str(argument.type) else others.append((index, found))
    # The index of the gradient of each argument among the results of the backward pass.
    names_of_gradients = [result.name for result in schema_of_backward.returns]
    gradients = [names_of_gradients.index(name) if name in names_of_gradients else None for name in arguments]
    special = GRADIENTS.get(name, {})

    def shapes_of_backward(*values: object) -> Tensor | tuple[Tensor, ...]:
        given = {argument.name: value for argument, value in zip(schema_of_backward.arguments, values)}
        found = [special[of](given) if of in special else _like(given[of])[0] for of in names_of_gradients]
        return tuple(found) if len(found) > 1 else found[0]

    shapes = {name: OPERATORS[name], f'{name}_backward': shapes_of_backward}
    for each, results in shapes.items():
        torch.library.register_fake(f'bioattn_mm::{each}', results)
    RESULTS.update(shapes)

    def save(ctx, inputs: tuple, output: Tensor | tuple[Tensor, ...]) -> None:
        values = (*inputs, *output) if isinstance(output, tuple) else (*inputs, output)
        ctx.save_for_backward(*map(values.__getitem__, tensors))
        ctx.others = [(index, values[found]) for index, found in others]
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
        for index, value in ctx.others:
            values.insert(index, value)
        if is_transformed() or torch.is_grad_enabled():
            found = Backward.apply(*values)
        else:
            with torch._C._ExcludeDispatchKeyGuard(BELOW_AUTOGRAD):
                found = backward_operator(*values)
        found = found if isinstance(found, tuple) else (found,)
        wanted = zip(gradients, ctx.needs_input_grad)
        return tuple([found[index] if needed and index is not None else None for index, needed in wanted])

    def forward(*inputs: object) -> Tensor | tuple[Tensor, ...]:
        with torch._C._ExcludeDispatchKeyGuard(BELOW_AUTOGRAD):
            return operator(*inputs)

    def jvp(ctx, *_: Tensor) -> None:
        raise NotImplementedError(f'bioattn_mm::{name} has no derivative in forward mode; {OTHERWISE}')

    def backward_again(ctx, *_: Tensor) -> None:
        # PyTorch would warn, and take the second derivative for zero.
        raise RuntimeError(f'bioattn_mm::{name}_backward has no derivative, {name} no second one; {OTHERWISE}')

    def function(suffix: str, **methods: Callable) -> type[torch.autograd.Function]:
        methods = {method: staticmethod(run) for method, run in methods.items()}
        return type(name + suffix, (torch.autograd.Function,), dict(methods, generate_vmap_rule=True))

    FUNCTIONS[name] = function('', forward=forward, setup_context=save, backward=backward, jvp=jvp)
    Backward = function(
        '_backward',
        forward=backward_operator.__call__,
        setup_context=lambda ctx, inputs, output: None,
        backward=backward_again,
    )
    torch.library.register_autograd(f'bioattn_mm::{name}', backward, setup_context=save)
    torch.library.register_autograd(f'bioattn_mm::{name}_backward', backward_again)

    for device, each in product(('CPU', 'CUDA'), shapes) if name in NUM_CAST else ():
        LIBRARY.impl(each, partial(_cast_and_call, each), f'Autocast{device}')


def _cast_and_call(name: str, *arguments: object) -> Tensor | tuple[Tensor, ...]:
    """An operator under autocast: PyTorch's own function would cast all arguments, and to one dtype for good."""
    cast = _cast(name, arguments)
    with torch._C._ExcludeDispatchKeyGuard(AUTOCAST):
        return getattr(torch.ops.bioattn_mm, name).default(*cast)
