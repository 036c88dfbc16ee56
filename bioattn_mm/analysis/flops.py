"""Multiply-adds of a forward pass, counted operator by operator with PyTorch's `FlopCounterMode`.

mmengine's counter traces a model with TorchScript, where sizes are tensors; the attention layers here compute with
sizes as ints. `FORMULAS` has the operators that PyTorch's counter has no formula for.
"""

import math

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ..errors import InputError
from ..ops.backends import HOW_TO_BUILD, LIBRARY_IS_LOADED, choose_backend
from ..systems.transnext import AggregatedAttention

Shape = tuple[int, ...]


def count_multiply_adds(network: nn.Module, x: Tensor) -> dict[str, int]:
    """Multiply-adds of one forward pass.

    Each multiply-add counts one. Counted are:

    - convolutions and matrix products
    - both products of attention, for all pairs of query and key, also masked ones and those outside of the image
    - the second layer of the log-spaced position bias
    - sampling in deformable attention: 4 for each interpolated value
    - Fourier transforms: 5/4 N log2 N for N real numbers, half of the usual estimate of 5/2 N log2 N operations
    - products of complex numbers: 4 each

    Biases, norms, activations, softmax, resizing, pooling and element-wise arithmetic are not counted.

    Args:
        network: A module on the CPU, where each of these is a separate operator.
        x: Its input.

    Returns:
        Multiply-adds by the module's name in `network`, '' for the whole. A module of several names has the first.
    """
    has_windows = any(isinstance(module, AggregatedAttention) for module in network.modules())
    if has_windows and choose_backend(x.device, None) == 'reference':
        why = 'multiply-adds are counted at the compiled operators, which do not run here'
        raise InputError(f'{why}; {HOW_TO_BUILD}')
    # The fast path of PyTorch's attention layers is a single operator without a formula.
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
            network(x)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    root = type(network).__name__
    counts = {name: sum(operators.values()) // 2 for name, operators in counter.get_flop_counts().items()}
    whole = counts.pop('Global', 0)
    return {'': whole} | {name.removeprefix(f'{root}.'): count for name, count in counts.items() if name != root}


# Formulas take the shapes of the operator's arguments, in their order. PyTorch counts a multiply-add as two.


def aggregated_attention(
    query: Shape, key: Shape, value: Shape, pooled_key: Shape, pooled_value: Shape, window_bias: Shape, *_, **__
) -> int:
    num_keys = window_bias[1] + pooled_key[1] * pooled_key[2]
    return 2 * 2 * math.prod(query) * num_keys


def relative_bias_attention(query: Shape, *_, **__) -> int:
    _, height, width, _, _ = query
    return 2 * 2 * math.prod(query) * height * width


def peripheral_attention(
    query: Shape, key: Shape, value: Shape, plane: Shape, scale: Shape, shift: Shape, conv_weight: Shape, *_, **__
) -> int:
    tokens = query[2]
    return 2 * 2 * math.prod(query) * tokens + 2 * tokens**2 * math.prod(conv_weight)


def cosine_attention(query: Shape, key_value: Shape, pooled_key_value: Shape, *parameters: Shape, **_) -> int:
    window_bias = parameters[2]
    learnable_tokens = 2 * math.prod(query) * window_bias[1]
    attention = aggregated_attention(query, query, query, pooled_key_value, pooled_key_value, window_bias)
    return attention + learnable_tokens


def gated_convolution(x: Shape, x_bias: Shape, weight: Shape, bias: Shape, **_) -> int:
    return 2 * math.prod(x[:3]) * math.prod(weight)


def sliding_window_qk(query: Shape, key: Shape, bias: Shape, **_) -> int:
    return 2 * math.prod(query) * bias[1]


def sliding_window_av(weights: Shape, value: Shape, **_) -> int:
    return 2 * math.prod(weights) * value[-1]


def log_cpb_table(
    vertical: Shape, horizontal: Shape, hidden_weight: Shape, hidden_bias: Shape, weight: Shape, bias: Shape, **_
) -> int:
    return 2 * vertical[0] * horizontal[0] * math.prod(weight)


def sparse_codes(gram: Shape, target: Shape, length: Shape, penalty: Shape, num_steps: int, *_, **__) -> int:
    return 2 * num_steps * math.prod(gram) * target[-1]


def scaled_dot_product_attention(query: Shape, key: Shape, value: Shape, *_, **__) -> int:
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def bilinear_samples(*_, out_shape: Shape, **__) -> int:
    return 2 * 4 * math.prod(out_shape)


def fourier_transform(x: Shape, axes: list[int], *_, out_shape: Shape, **__) -> int:
    real = max(x, out_shape, key=math.prod)  # of the other the half is left out that follows from it
    return round(2 * 1.25 * math.prod(real) * math.log2(math.prod(real[axis] for axis in axes)))


def complex_products(*_, out_val: Tensor, **__) -> int:
    return 2 * 4 * out_val.numel() if out_val.is_complex() else 0


# Tells PyTorch to pass the tensors instead of their shapes.
complex_products._get_raw = True

FORMULAS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: scaled_dot_product_attention,
    torch.ops.aten.grid_sampler_2d: bilinear_samples,
    torch.ops.aten._fft_r2c: fourier_transform,
    torch.ops.aten._fft_c2r: fourier_transform,
    torch.ops.aten.mul: complex_products,
}
if LIBRARY_IS_LOADED:
    ours = torch.ops.bioattn_mm
    FORMULAS |= {
        ours.aggregated_attention: aggregated_attention,
        ours.relative_bias_attention: relative_bias_attention,
        ours.peripheral_attention: peripheral_attention,
        ours.cosine_attention: cosine_attention,
        ours.gated_convolution: gated_convolution,
        ours.sliding_window_qk: sliding_window_qk,
        ours.sliding_window_av: sliding_window_av,
        ours.sparse_codes: sparse_codes,
        ours.log_cpb_table: log_cpb_table,
    }
