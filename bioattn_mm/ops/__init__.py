"""Operators: compiled for the CPU and for CUDA where that was possible, and in plain PyTorch everywhere.

A `ValueError` says which arguments do not fit each other, or the backend that was asked for (`choose_backend`).
docs/operators.md has what each computes, and for which systems. `sliding_window_qk` and `sliding_window_av` are there
to build other attention layers from, like the operators of `mmcv.ops`: `DynamicBiasAttention` is one.
"""

from .add_norm import add_norm as add_norm
from .aggregated_attention import AggregatedAttentionInputs as AggregatedAttentionInputs
from .aggregated_attention import aggregated_attention as aggregated_attention
from .cosine_attention import cosine_attention as cosine_attention
from .cosine_attention import log_num_keys as log_num_keys
from .cosine_attention import unit_vectors as unit_vectors
from .deformable_attention import deformable_attention as deformable_attention
from .gated_convolution import gated_convolution as gated_convolution
from .gelu_pool import gelu_pool as gelu_pool
from .gelu_pool import gelu_pool_norm as gelu_pool_norm
from .log_cpb import log_cpb_table as log_cpb_table
from .peripheral_attention import peripheral_attention as peripheral_attention
from .relative_bias_attention import relative_bias_attention as relative_bias_attention
from .sliding_window import sliding_window_av as sliding_window_av
from .sliding_window import sliding_window_qk as sliding_window_qk
from .sparse_codes import sparse_codes as sparse_codes
