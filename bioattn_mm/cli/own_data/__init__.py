"""Training, testing and looking at own data: reads a folder, and sets its images and classes in a config."""

from .arguments import LAYOUTS, DataArguments, data_arguments
from .coco import read_coco
from .folders import OwnData
from .masks import read_masks
from .use import check_classes, keep_data_files, use_own_data

__all__ = [
    'LAYOUTS',
    'DataArguments',
    'OwnData',
    'check_classes',
    'data_arguments',
    'keep_data_files',
    'read_coco',
    'read_masks',
    'use_own_data',
]
