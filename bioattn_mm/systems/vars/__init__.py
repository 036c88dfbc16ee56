"""VARS: attention as recurrent sparse reconstruction (Shi et al., ICML 2022), and the baselines of its paper."""

from .attention import ConvolutionalSparseReconstruction as ConvolutionalSparseReconstruction
from .attention import IstaReconstructionAttention as IstaReconstructionAttention
from .attention import SparseReconstructionAttention as SparseReconstructionAttention
from .backbone import VARS as VARS
from .baselines import GlobalFilter as GlobalFilter
from .baselines import PerformerAttention as PerformerAttention
