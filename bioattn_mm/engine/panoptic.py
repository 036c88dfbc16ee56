"""Panoptic segmentation: mmdet's metric and mmdet's visualizer, without what is wrong with them."""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from mmdet.evaluation import CocoPanopticMetric as MMDetCocoPanopticMetric
from mmdet.structures import INSTANCE_OFFSET, DetDataSample
from mmengine.structures import PixelData

from ..registry import METRICS, VISUALIZERS
from .detection import DetVisualizer


@METRICS.register_module()
class CocoPanopticMetric(MMDetCocoPanopticMetric):
    """mmdet's `CocoPanopticMetric` with the same arguments, which leaves the predictions as they are.

    On the CPU, mmdet's writes the ID of unlabelled pixels, 0, into the prediction itself. Whatever comes after it,
    such as the drawing of the test images, would take them for pixels of class 0.
    """

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        data_samples = [
            dict(sample, pred_panoptic_seg=copy.deepcopy(sample['pred_panoptic_seg'])) for sample in data_samples
        ]
        super().process(data_batch, data_samples)


@VISUALIZERS.register_module()
class PanopticVisualizer(DetVisualizer):
    """`DetVisualizer` with the same arguments, which draws the segments of a panoptic sample alone.

    mmdet draws instances and label maps below the segments, fails where no segment was found, and of the ground truth
    has no segments: they are made of its instances and its label map.
    """

    def add_datasample(
        self, name: str, image: np.ndarray, data_sample: DetDataSample | None = None, *args: object, **kwargs: object
    ) -> None:
        if data_sample is not None:
            data_sample = self._with_segments(data_sample)
        super().add_datasample(name, image, data_sample, *args, **kwargs)

    def _with_segments(self, sample: DetDataSample) -> DetDataSample:
        """A sample with nothing but segments, if it has any; else the sample itself."""
        segments = DetDataSample(metainfo=sample.metainfo)
        if 'pred_panoptic_seg' in sample:
            segments.pred_panoptic_seg = sample.pred_panoptic_seg
        # The label map that mmdet loads with panoptic annotations; boxes and masks alone are drawn as such.
        if 'gt_sem_seg' in sample and 'masks' in sample.get('gt_instances', ()):
            segments.gt_panoptic_seg = self._ground_truth(sample)
        return segments if segments.keys() else sample

    def _ground_truth(self, sample: DetDataSample) -> PixelData:
        """Segments in mmdet's form: class + `INSTANCE_OFFSET` * number of the instance, (1, H, W) array."""
        labels = sample.gt_sem_seg.sem_seg.cpu().numpy().astype(np.int32)
        num_classes = len(self.dataset_meta['classes'])
        labels[labels >= num_classes] = num_classes  # which mmdet leaves out
        instances = sample.gt_instances
        for number, (label, mask) in enumerate(zip(instances.labels.tolist(), instances.masks.masks), start=1):
            labels[0, mask.astype(bool)] = label + INSTANCE_OFFSET * number
        return PixelData(sem_seg=labels)

    def _draw_panoptic_seg(
        self, image: np.ndarray, panoptic_seg: PixelData, classes: list[str], palette: list | None
    ) -> np.ndarray:
        labels = panoptic_seg.sem_seg
        labels = labels.numpy() if isinstance(labels, torch.Tensor) else labels
        if (labels == len(classes)).all():
            return image
        return super()._draw_panoptic_seg(image, panoptic_seg, classes, palette)
