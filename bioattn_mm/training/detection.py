"""mmdet's drawing and metrics without what is wrong with them."""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from mmdet.evaluation import CocoPanopticMetric as MMDetCocoPanopticMetric
from mmdet.structures import INSTANCE_OFFSET, DetDataSample
from mmdet.visualization import DetLocalVisualizer
from mmengine.dist import master_only
from mmengine.structures import PixelData
from torch import Tensor

from ..registry import METRICS, VISUALIZERS


@VISUALIZERS.register_module()
class DetVisualizer(DetLocalVisualizer):
    """mmdet's `DetLocalVisualizer` with the same arguments and drawings, which mixes colours inside of masks alone.

    mmengine mixes all of the image for each mask: with 300 of them half a minute for 1067 x 800 pixels.
    """

    @master_only
    def draw_binary_masks(
        self,
        binary_masks: np.ndarray | Tensor,
        colors: Sequence[Sequence[int]],
        alphas: float | Sequence[float] = 0.8,
    ) -> 'DetVisualizer':
        """Draw masks, bool (N, H, W), in their colours, R, G and B of each, with an opacity of all or of each."""
        image = self.get_image()
        for mask, color, alpha in zip(
            np.asarray(binary_masks), colors, np.broadcast_to(alphas, len(binary_masks)), strict=True
        ):
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            if not len(rows):
                continue
            box = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            part = image[box]
            mixed = part[mask[box]] * (1 - alpha) + np.asarray(color) * alpha
            part[mask[box]] = np.rint(mixed)
        self.ax_save.imshow(image, extent=(0, self.width, self.height, 0), interpolation='nearest')
        return self


@METRICS.register_module()
class CocoPanopticMetric(MMDetCocoPanopticMetric):
    """mmdet's `CocoPanopticMetric` with the same arguments, which leaves the predictions as they are.

    On the CPU, mmdet's writes the ID of unlabelled pixels into the prediction, where drawing takes them for class 0.
    """

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        data_samples = [
            dict(sample, pred_panoptic_seg=copy.deepcopy(sample['pred_panoptic_seg'])) for sample in data_samples
        ]
        super().process(data_batch, data_samples)


@VISUALIZERS.register_module()
class PanopticVisualizer(DetVisualizer):
    """`DetVisualizer` with the same arguments, which draws the segments of a panoptic sample alone.

    mmdet draws instances and label maps below them, fails where none was found, and has none of the ground truth.
    """

    def add_datasample(
        self, name: str, image: np.ndarray, data_sample: DetDataSample | None = None, *args: object, **kwargs: object
    ) -> None:
        if data_sample is not None:
            data_sample = self._with_segments(data_sample)
        super().add_datasample(name, image, data_sample, *args, **kwargs)

    def _with_segments(self, sample: DetDataSample) -> DetDataSample:
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
