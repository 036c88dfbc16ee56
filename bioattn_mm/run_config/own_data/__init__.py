"""Training, testing and looking at own data: reads a folder, and sets its images and classes in a config."""

from .arguments import LAYOUTS, DataArguments, data_arguments
from .folders import OwnData
from .use import check_classes, keep_data_files, use_own_data

__all__ = [
    'LAYOUTS',
    'DataArguments',
    'OwnData',
    'check_classes',
    'data_arguments',
    'keep_data_files',
    'use_own_data',
]
