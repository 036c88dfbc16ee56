"""How far two predictions are apart: written out for a few detections."""

import math

import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement, InstanceData, PixelData

from bioattn_mm.export.verification import PYTORCH, Verification, largest_difference

TEST_CFG = dict(score_thr=0.05, max_per_img=3)


def detections(*rows: tuple[int, float, int]) -> BaseDataElement:
    """A prediction for an image of 100 x 200 pixels: the left edge of each box, its score and its class."""
    left, scores, labels = (torch.tensor(column) for column in zip(*rows)) if rows else torch.zeros(3, 0)
    boxes = torch.stack([left, 0 * left, left + 10, 0 * left + 10], dim=-1).float()
    sample = BaseDataElement(metainfo=dict(ori_shape=(100, 200)))
    sample.pred_instances = InstanceData(bboxes=boxes, scores=scores, labels=labels)
    return sample


@pytest.mark.parametrize(
    'other, difference',
    [
        (detections((50, 0.4, 2), (0, 0.9, 1)), 0.0),  # the order says nothing
        (detections((0, 0.8, 1), (50, 0.4, 2)), 0.1),
        (detections((0, 0.9, 1), (54, 0.4, 2)), 4 / 200),
        (detections((0, 0.9, 1), (50, 0.4, 3)), 0.35),  # another class: each is alone, above the threshold
        (detections((0, 0.9, 1)), 0.35),
        (detections(), 0.85),
        (detections((0, 0.9, 1), (50, 0.4, 2), (70, 0.051, 1)), 0.001),  # just above the threshold
        # The other side is full and keeps nothing below 0.39; of its boxes, the last is farther from all than that.
        (detections((0, 0.9, 1), (10, 0.85, 1), (20, 0.39, 1)), 0.34),
    ],
)
def test_of_detections(other: BaseDataElement, difference: float) -> None:
    own = detections((0, 0.9, 1), (50, 0.4, 2))
    assert largest_difference(own, other, TEST_CFG) == pytest.approx(difference, abs=1e-6)
    assert largest_difference(other, own, TEST_CFG) == pytest.approx(difference, abs=1e-6)


def test_of_scores() -> None:
    a, b = BaseDataElement(), BaseDataElement()
    scores = np.arange(24.0).reshape(2, 3, 4)
    a.seg_logits = PixelData(data=torch.from_numpy(scores))
    b.seg_logits = PixelData(data=torch.from_numpy(scores + np.where(scores == 7, -0.25, 0.125)))
    assert largest_difference(a, b, {}) == 0.25


@pytest.mark.parametrize('place', [0, 1])
def test_nan_is_no_small_difference(place: int) -> None:
    """On any of the images."""

    class Model:
        def __init__(self, *scores: float) -> None:
            self.scores = iter(scores)

        def test_step(self, data: dict) -> list[BaseDataElement]:
            return [BaseDataElement(seg_logits=PixelData(data=torch.full((2, 3, 4), next(self.scores))))]

    comparison = Verification.__new__(Verification)
    exported = [0.5, 0.5]
    exported[place] = math.nan
    comparison.models, comparison.dataloader = {PYTORCH: Model(0.5, 0.5), 'file': Model(*exported)}, [{}, {}]
    comparison.differences, comparison.seconds = dict(file=0.0), dict.fromkeys(comparison.models, 0.0)
    comparison.test_cfg = {}
    assert len(list(comparison.run())) == 2 and math.isnan(comparison.differences['file'])


def test_of_segments() -> None:
    a, b = detections((0, 0.9, 1)), detections((0, 0.8, 1))
    segments = torch.zeros(1, 4, 5, dtype=torch.int32)
    for sample, where in ((a, slice(0, 2)), (b, slice(0, 3))):
        sample.pred_panoptic_seg = PixelData(sem_seg=segments.clone())
        sample.pred_panoptic_seg.sem_seg[:, 0, where] = 1007
    # The scores differ by more; without the objects, one pixel of 20 differs.
    assert largest_difference(a, b, TEST_CFG) == pytest.approx(0.1)
    del a.pred_instances, b.pred_instances
    assert largest_difference(a, b, TEST_CFG) == pytest.approx(0.05)


def test_of_masks() -> None:
    masks = torch.zeros(2, 100, 200, dtype=torch.bool)
    masks[0, 10:20, 10:20] = True
    others = masks.flip(0).clone()
    others[1, 19, 15:25] = True  # 5 of them were there
    own, other = detections((0, 0.9, 1), (50, 0.4, 2)), detections((50, 0.4, 2), (0, 0.9, 1))
    own.pred_instances.masks, other.pred_instances.masks = masks, others
    assert largest_difference(own, other, TEST_CFG) == pytest.approx(5 / 20_000, abs=1e-9)
