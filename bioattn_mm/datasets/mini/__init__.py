"""Miniature ADE20K, COCO and ImageNet, drawn by program in the exact on-disk formats of the real datasets."""

from .ade20k import majority_baseline
from .make import FOLDERS, is_outdated, make_mini_datasets

__all__ = ['FOLDERS', 'is_outdated', 'majority_baseline', 'make_mini_datasets']
