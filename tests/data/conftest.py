"""A small miniature, made once for all tests of the datasets, and how samples are loaded and compared."""

from pathlib import Path

import numpy as np
import pytest
import torch
from mmdet.datasets import CocoDataset
from mmengine.registry import init_default_scope
from mmengine.structures import BaseDataElement

from bioattn_mm.data.mini import make_mini_datasets

NUM_TRAIN, NUM_VAL = 12, 4


@pytest.fixture(scope='session')
def mini(tmp_path_factory) -> dict[str, Path]:
    """Folders of a miniature of 12 training and 4 validation images."""
    return make_mini_datasets(tmp_path_factory.mktemp('data'), NUM_TRAIN, NUM_VAL, progress=False)


def detection_dataset(kind: type, root: Path, annotations: str, images: str) -> CocoDataset:
    """A dataset of mmdet with images, boxes, masks and, if it is panoptic, label maps."""
    init_default_scope('mmdet')
    load, prefix = dict(type='bioattn_mm.CheckedLoadAnnotations', with_bbox=True, with_mask=True), dict(img=images)
    if 'Panoptic' in kind.__name__:
        load, prefix = dict(type='bioattn_mm.CheckedLoadPanopticAnnotations'), dict(prefix, seg=annotations)
    pipeline = [dict(type='LoadImageFromFile'), load]
    return kind(data_root=str(root), ann_file=f'{annotations}.json', data_prefix=prefix, pipeline=pipeline)


def assert_same_annotations(first: BaseDataElement, second: BaseDataElement) -> None:
    """Data samples have the same annotations and meta information."""
    assert first.metainfo == second.metainfo
    if 'gt_sem_seg' in first:
        assert torch.equal(*(next(iter(each.gt_sem_seg.values())) for each in (first, second)))
    if 'labels' in first.get('gt_instances', ()):
        first, second = first.gt_instances, second.gt_instances
        assert torch.equal(first.labels, second.labels) and torch.equal(first.bboxes.tensor, second.bboxes.tensor)
        if 'masks' in first:
            assert np.array_equal(first.masks.masks, second.masks.masks)
