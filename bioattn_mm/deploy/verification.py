"""Comparison of an exported model with the one in PyTorch on the same images."""

import contextlib
import copy
import io
import math
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from mmdeploy.apis import build_task_processor
from mmdeploy.utils import get_input_shape
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.registry import DATASETS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement, InstanceData
from torch import Tensor

from .export import scale_in_testing

# No config pads images whose sides are multiples of this.
SIZE_DIVISOR = 32
PYTORCH = 'PyTorch'
# Metrics that a bound is put on, and how many points 1 of them is: mmdet gives fractions, mmseg per cent.
POINTS = dict(mIoU=1, PQ=1, bbox_mAP=100, segm_mAP=100)


class Verification:
    """Runs a model and the files that it was exported to on some of the test images, taken at equal distances.

    All images are resized to the input size of the deploy config, or to about 4 : 3, which is not the traced size.
    Neither needs padding, which an exported model would take for a part of the image while PyTorch's leaves it
    out. Segmentors take whole images instead of sliding windows, as exported ones do.

    Args:
        config: Config of the model.
        deploy_config: Config of the export.
        checkpoint: Weights of the model in PyTorch.
        exported: For each exported model its name and its files.
        num_images: Number of images, at most; at full size each takes many seconds.

    Attributes:
        num_available: Number of test images that there are.
        differences: The largest difference from PyTorch so far (see `largest_difference`) of each exported model.
        seconds: Time for the fastest image of each model, with its preprocessing and postprocessing.
    """

    def __init__(
        self,
        config: Config,
        deploy_config: Config,
        checkpoint: Path,
        exported: dict[str, list[str]],
        num_images: int,
    ) -> None:
        config = copy.deepcopy(config)
        size = get_input_shape(deploy_config) or dynamic_size(config)
        for pipeline in (config.test_pipeline, config.test_dataloader.dataset.pipeline):
            for step in pipeline:
                if step['type'] == 'Resize':
                    step.update(scale=tuple(size), keep_ratio=False)
        for stage in ('rpn', 'rcnn'):
            if 'nms' in config.model.test_cfg.get(stage, {}):
                # One class or level at a time. By default mmcv shifts their boxes thousands of pixels apart and takes
                # them together, but there float32 rounds so coarsely that other boxes are suppressed.
                config.model.test_cfg[stage].nms.split_thr = 1
        config.test_dataloader.update(num_workers=0, persistent_workers=False, batch_size=1)
        task = build_task_processor(config, deploy_config, 'cpu')
        self.models = {PYTORCH: task.build_pytorch_model(str(checkpoint))}
        for name, files in exported.items():
            self.models[name] = task.build_backend_model(files, task.update_data_preprocessor)
        dataset = DATASETS.build(config.test_dataloader.dataset)
        self.num_available = len(dataset)
        dataset.get_subset_(evenly_spaced(min(num_images, len(dataset)), len(dataset)))
        self.dataloader = Runner.build_dataloader({**config.test_dataloader, 'dataset': dataset})
        self.evaluators = {name: Evaluator(copy.deepcopy(config.test_evaluator)) for name in self.models}
        for evaluator in self.evaluators.values():
            evaluator.dataset_meta = dataset.metainfo
            for metric in evaluator.metrics:
                if hasattr(metric, 'img_ids'):  # COCO's, which otherwise counts all others as images without objects
                    metric.img_ids = [dataset.get_data_info(index)['img_id'] for index in range(len(dataset))]
        test_cfg = config.model.test_cfg
        self.test_cfg = test_cfg.get('rcnn', test_cfg)
        self.differences = dict.fromkeys(exported, 0.0)
        self.seconds = dict.fromkeys(self.models, float('inf'))

    def __len__(self) -> int:
        return len(self.dataloader)

    @torch.no_grad()
    def run(self) -> Iterator[None]:
        """Run all models on each image; yields after each."""
        for data in self.dataloader:
            outputs = {}
            for name, model in self.models.items():
                own_data, start = copy.deepcopy(data), time.perf_counter()
                outputs[name] = model.test_step(own_data)
                self.seconds[name] = min(self.seconds[name], time.perf_counter() - start)
                self.evaluators[name].process(copy.deepcopy(outputs[name]), data)
            for name in self.differences:
                pairs = zip(outputs[PYTORCH], outputs[name])
                found = max(largest_difference(*pair, self.test_cfg) for pair in pairs)
                self.differences[name] = max(self.differences[name], found)
            yield

    def metrics(self) -> dict[str, dict[str, float]]:
        """Every metric of every model after all images; NaN if a model has no value."""
        # COCO's metric prints tables, and returns nothing for a model without detections.
        with contextlib.redirect_stdout(io.StringIO()):
            found = {name: evaluator.evaluate(len(self)) for name, evaluator in self.evaluators.items()}
        names = dict.fromkeys(metric for values in found.values() for metric in values)
        return {
            metric: {name: float(values.get(metric, float('nan'))) for name, values in found.items()}
            for metric in names
        }


def drops(metrics: dict[str, dict[str, float]]) -> dict[str, float]:
    """By how many points the metric of each exported model is below PyTorch's, of several metrics the largest drop.

    Args:
        metrics: As `Verification.metrics` returns them. Those that `POINTS` does not have are left out.

    Returns:
        The drop of each exported model; infinity where it has no value and PyTorch has one.
    """
    found = {}
    for metric, values in metrics.items():
        points, expected = POINTS.get(metric.rpartition('/')[2]), values[PYTORCH]
        for name in values if points and not math.isnan(expected) else ():
            drop = math.inf if math.isnan(values[name]) else points * (expected - values[name])
            found[name] = max(found.get(name, -math.inf), drop)
    found.pop(PYTORCH, None)
    return found


def evenly_spaced(number: int, length: int) -> list[int]:
    """Indices of some of the elements of a list, from all of it."""
    return [index * length // number for index in range(number)]


def dynamic_size(config: Config) -> tuple[int, int]:
    """(width, height) of about 4 : 3 with the short side of testing, rounded up to multiples of SIZE_DIVISOR."""
    height = min(scale_in_testing(config))
    return tuple(-(-side // SIZE_DIVISOR) * SIZE_DIVISOR for side in (4 * height // 3, height))


def largest_difference(a: BaseDataElement, b: BaseDataElement, test_cfg: dict) -> float:
    """The largest difference between two predictions for an image.

    Segmentation: the largest difference of the logits. Detection: each detection is compared with the closest one of
    its class in the other prediction; their difference is the largest among that of the scores, that of the corners
    relative to the longer side of the image, and the fraction of pixels in which the masks differ. It is at most the
    amount by which the score exceeds the lowest score that the other prediction would have kept. Panoptic
    segmentation: the fraction of pixels of another segment, and where there are detections their difference, too.
    """
    if 'seg_logits' in a:
        return float((a.seg_logits.data - b.seg_logits.data).abs().max())
    side, differences = max(a.ori_shape), []
    if 'pred_panoptic_seg' in a:
        segments, other_segments = a.pred_panoptic_seg.sem_seg, b.pred_panoptic_seg.sem_seg
        differences.append(float((segments != other_segments).float().mean()))
    if 'pred_instances' in a:
        a, b = a.pred_instances, b.pred_instances
        differences += [from_closest(a, b, side, test_cfg), from_closest(b, a, side, test_cfg)]
    return max(differences)


def from_closest(instances: InstanceData, others: InstanceData, side: int, test_cfg: dict) -> float:
    """The largest difference between a detection and the closest of its class among the others."""
    if len(instances) == 0:
        return 0.0
    limit = test_cfg.get('max_per_img', 0)
    lowest = float(others.scores.min()) if len(others) >= limit > 0 else test_cfg.get('score_thr', 0.0)
    alone = (instances.scores - lowest).clamp(min=0)
    if len(others) == 0:
        return float(alone.max())

    def distances(values: Tensor, other_values: Tensor) -> Tensor:
        return (values[:, None] - other_values).abs()

    boxes = distances(instances.bboxes, others.bboxes).amax(-1) / side
    difference = torch.maximum(boxes, distances(instances.scores, others.scores))
    if 'masks' in instances:
        difference = torch.maximum(difference, mask_distances(instances.masks, others.masks))
    difference = difference.masked_fill(instances.labels[:, None] != others.labels, torch.inf)
    return float(torch.minimum(difference.amin(1), alone).max())


def mask_distances(masks: Tensor, other_masks: Tensor) -> Tensor:
    """Fraction of pixels in which each pair of masks differs: bool (N, H, W) and (M, H, W) to (N, M)."""
    masks, other_masks = masks.flatten(1).float(), other_masks.flatten(1).float()
    common = masks @ other_masks.T
    return (masks.sum(1)[:, None] + other_masks.sum(1) - 2 * common) / masks.shape[1]
