"""GAB: a Gaussian attention bias for ViT and Swin. `swin_attention` imports mmpretrain, which takes seconds."""

from .gaussian_bias import GaussianBias
from .swin import GABSwin
from .vit import GABViT
from .vit_attention import GaussianRelPosAttention, GaussianRelPosMlp

__all__ = ['GABSwin', 'GABViT', 'GaussianBias', 'GaussianRelPosAttention', 'GaussianRelPosMlp']
