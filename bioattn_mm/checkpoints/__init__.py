"""Checkpoints: files, weights of a backbone, and the authors' whole detectors and segmentors (`downstream`)."""

from .files import (
    check_values,
    dataset_meta_of,
    fetch,
    find_weights_key,
    first_of,
    mmengine_reads_all,
    plain_checkpoint,
    read_checkpoint,
    read_state_dict,
    weights_of,
    write_checkpoint,
    write_safetensors,
)
from .loading import (
    check_fit,
    fit_backbone,
    fit_classifier,
    load_backbone,
    match_backbone,
    other_classes,
    rename_released,
    weights_for,
)
from .sharded import is_sharded, is_whole, read_sharded, split

__all__ = [
    'check_fit',
    'check_values',
    'dataset_meta_of',
    'fetch',
    'find_weights_key',
    'first_of',
    'fit_backbone',
    'fit_classifier',
    'load_backbone',
    'is_sharded',
    'is_whole',
    'match_backbone',
    'mmengine_reads_all',
    'other_classes',
    'plain_checkpoint',
    'read_checkpoint',
    'read_sharded',
    'read_state_dict',
    'rename_released',
    'split',
    'weights_for',
    'weights_of',
    'write_checkpoint',
    'write_safetensors',
]
