"""mmcv's compiled ops written in PyTorch and torchvision, for an mmcv that was installed without them."""

from .mmcv_ext import install

__all__ = ['install']
