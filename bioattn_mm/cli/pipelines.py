"""What the tools change in the pipelines of a config, which name the transforms of mmcv, mmdet and mmseg."""

import copy
from collections.abc import Iterator

from mmengine.config import Config, ConfigDict

from .command_line import find_datasets

LOAD_ANNOTATIONS = 'LoadAnnotations'
LOADING = ('LoadImageFromFile', LOAD_ANNOTATIONS)
CHECKED = 'bioattn_mm.Checked'


def name_bad_files(config: Config) -> None:
    """Let all of a config load images and annotations with this package's transforms, whose errors name the file.

    `LoadImageFromFile` and `LoadAnnotations` become `bioattn_mm.CheckedLoadImageFromFile` and
    `bioattn_mm.CheckedLoadAnnotations` with the same arguments, inside of dataset wrappers and of transforms that
    hold others, too. The configs name the former because mmdet's and mmseg's inference APIs look for them.
    """
    for step in _find_dicts(config):
        if step.get('type') in LOADING:
            step['type'] = CHECKED + step['type']


def name_host_transforms(config: Config) -> None:
    """Undo `name_bad_files`, for a config that is saved: mmdet's and mmseg's inference APIs read it."""
    for step in _find_dicts(config):
        if str(step.get('type')) in [CHECKED + name for name in LOADING]:
            step['type'] = step['type'].removeprefix(CHECKED)


def load_ground_truth(config: Config) -> None:
    """Load the boxes of a detection config's test images, and the masks where its training does, to draw them.

    The step goes in front of `PackDetInputs`, where boxes and masks are of the size of the file: mmdet draws them on
    that. A pipeline that loads annotations already, as those of segmentation do, or that packs its images inside of
    another transform, as multi-scale testing does, stays as it is.
    """
    steps = (step for step in _find_dicts(config.get('train_dataloader')) if _loads_annotations(step))
    load = copy.deepcopy(next(steps, dict(with_bbox=True)))
    load['type'] = CHECKED + LOAD_ANNOTATIONS
    for dataset in find_datasets(config.test_dataloader):
        pipeline = dataset.get('pipeline', [])
        types = [step['type'] for step in pipeline]
        if 'PackDetInputs' in types and not any(map(_loads_annotations, pipeline)):
            pipeline.insert(types.index('PackDetInputs'), load)


def _loads_annotations(step: ConfigDict) -> bool:
    return step.get('type') in (LOAD_ANNOTATIONS, CHECKED + LOAD_ANNOTATIONS)


def _find_dicts(node: object) -> Iterator[ConfigDict]:
    """All dicts inside of nested dicts and lists, the outer ones first."""
    if isinstance(node, (dict, Config)):
        yield node
        for value in node.values():
            yield from _find_dicts(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _find_dicts(value)
