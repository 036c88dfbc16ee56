"""Operators: compiled for the CPU and for CUDA where that was possible, and in plain PyTorch everywhere.

A `ValueError` says which arguments do not fit each other, or the backend that was asked for (`choose_backend`).
The layers of TransNeXt run `cosine_attention`, which is `aggregated_attention` on CUDA, `relative_bias_attention`,
`gated_convolution`, `gelu_pool`, on a GPU `gelu_pool_norm`, `log_cpb_table` and `add_norm`; those of GAB for plain
ViTs `relative_bias_attention`, those of PerViT `peripheral_attention`, those of VARS-D and VARS-SD `sparse_codes`;
DINO and Mask2Former run `deformable_attention`. `sliding_window_qk` and `sliding_window_av` are public operators to
build other attention layers from, like those of `mmcv.ops`; here an ablation of TransNeXt, `DynamicBiasAttention`,
uses them.
"""

from .add_norm import add_norm
from .aggregated_attention import AggregatedAttentionInputs, aggregated_attention
from .cosine_attention import cosine_attention, log_num_keys, unit_vectors
from .deformable_attention import deformable_attention
from .gated_convolution import gated_convolution, gated_convolution_reference
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
    'gated_convolution_reference',
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
