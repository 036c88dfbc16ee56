"""VARS: attention as recurrent sparse reconstruction (Shi et al., ICML 2022), and the baselines of its paper."""

from .attention import ConvolutionalSparseReconstruction, IstaReconstructionAttention, SparseReconstructionAttention
from .backbone import VARS
from .baselines import GlobalFilter, PerformerAttention

__all__ = [
    'ConvolutionalSparseReconstruction',
    'GlobalFilter',
    'IstaReconstructionAttention',
    'PerformerAttention',
    'SparseReconstructionAttention',
    'VARS',
]
