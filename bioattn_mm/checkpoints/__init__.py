"""Checkpoints: files, weights of a backbone, and the authors' whole detectors and segmentors (`downstream`)."""

from .files import (
    dataset_meta_of,
    fetch,
    mmengine_reads_all,
    read_checkpoint,
    read_state_dict,
    weights_of,
    write_checkpoint,
)
from .loading import Release, check_fit, convert_channels, fit_backbone, fit_classifier, load_backbone, weights_for
from .sharded import is_sharded

__all__ = [
    'Release',
    'check_fit',
    'dataset_meta_of',
    'fetch',
    'convert_channels',
    'fit_backbone',
    'fit_classifier',
    'load_backbone',
    'is_sharded',
    'mmengine_reads_all',
    'read_checkpoint',
    'read_state_dict',
    'weights_for',
    'weights_of',
    'write_checkpoint',
]
