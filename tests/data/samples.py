"""Packed samples of two datasets, beside each other."""

import numpy as np
import torch
from mmengine.structures import BaseDataElement


def assert_same_annotations(first: BaseDataElement, second: BaseDataElement) -> None:
    """Data samples have the same annotations and meta information."""
    assert first.metainfo == second.metainfo
    if 'gt_sem_seg' in first:
        assert torch.equal(*(next(iter(each.gt_sem_seg.values())) for each in (first, second)))
    if 'gt_instances' in first:
        first, second = first.gt_instances, second.gt_instances
        assert torch.equal(first.labels, second.labels) and torch.equal(first.bboxes.tensor, second.bboxes.tensor)
        if 'masks' in first:
            assert np.array_equal(first.masks.masks, second.masks.masks)
