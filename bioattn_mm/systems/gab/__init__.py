"""GAB: a Gaussian attention bias for ViT and Swin. `swin_attention` imports mmpretrain, which takes seconds."""

from .gaussian_bias import GaussianBias as GaussianBias
from .swin import GABSwin as GABSwin
from .vit import GABViT as GABViT
from .vit_attention import GaussianRelPosAttention as GaussianRelPosAttention
from .vit_attention import GaussianRelPosMlp as GaussianRelPosMlp
