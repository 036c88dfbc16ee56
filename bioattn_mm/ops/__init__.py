"""Operators: compiled for the CPU and for CUDA where that was possible, and in plain PyTorch everywhere.

A `ValueError` says which arguments do not fit each other, or the backend that was asked for (`choose_backend`).
docs/operators.md has what each computes, and for which systems. `sliding_window_qk` and `sliding_window_av` are there
to build other attention layers from, like the operators of `mmcv.ops`: `DynamicBiasAttention` is one.
"""

from .add_norm import add_norm
from .aggregated_attention import AggregatedAttentionInputs, aggregated_attention
from .cosine_attention import cosine_attention, log_num_keys, unit_vectors
from .deformable_attention import deformable_attention
from .gated_convolution import gated_convolution
from .gelu_pool import gelu_pool, gelu_pool_norm
from .log_cpb import log_cpb_table
from .peripheral_attention import peripheral_attention
from .relative_bias_attention import relative_bias_attention
from .sliding_window import sliding_window_av, sliding_window_qk
from .sparse_codes import sparse_codes

__all__ = [
    'AggregatedAttentionInputs',
    'add_norm',
    'aggregated_attention',
    'cosine_attention',
    'deformable_attention',
    'gated_convolution',
    'gelu_pool',
    'gelu_pool_norm',
    'log_cpb_table',
    'log_num_keys',
    'peripheral_attention',
    'relative_bias_attention',
    'sliding_window_av',
    'sliding_window_qk',
    'sparse_codes',
    'unit_vectors',
]
