"""Miniature ADE20K and COCO, drawn by program in the exact on-disk formats of the real datasets."""

from .ade20k import majority_baseline
from .make import is_outdated, make_mini_datasets

__all__ = ['is_outdated', 'majority_baseline', 'make_mini_datasets']
