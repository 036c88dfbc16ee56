"""Comparison of an exported model with the one in PyTorch on the same images."""

import contextlib
import copy
import io
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
NAMES = ('PyTorch', 'exported')


class Verification:
    """Runs both models on some of the test images of a config, taken at equal distances.

    All images are resized to the input size of the deploy config, or to about 4 : 3, which is not the traced size.
    Neither needs padding, which an exported model would take for a part of the image while PyTorch's leaves it
    out. Segmentors take whole images instead of sliding windows, as exported ones do.

    Args:
        config: Config of the model.
        deploy_config: Config of the export.
        checkpoint: Weights of the model in PyTorch.
        backend_files: Files of the exported model.
        num_images: Number of images, at most; at full size each takes many seconds.

    Attributes:
        num_available: Number of test images that there are.
        difference: The largest difference so far (see `largest_difference`).
    """

    def __init__(
        self, config: Config, deploy_config: Config, checkpoint: Path, backend_files: list[str], num_images: int
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
        models = (
            task.build_pytorch_model(str(checkpoint)),
            task.build_backend_model(backend_files, task.update_data_preprocessor),
        )
        self.models = dict(zip(NAMES, models))
        dataset = DATASETS.build(config.test_dataloader.dataset)
        self.num_available = len(dataset)
        dataset.get_subset_(evenly_spaced(min(num_images, len(dataset)), len(dataset)))
        self.dataloader = Runner.build_dataloader({**config.test_dataloader, 'dataset': dataset})
        self.evaluators = {name: Evaluator(copy.deepcopy(config.test_evaluator)) for name in NAMES}
        for evaluator in self.evaluators.values():
            evaluator.dataset_meta = dataset.metainfo
            for metric in evaluator.metrics:
                if hasattr(metric, 'img_ids'):  # COCO's, which otherwise counts all others as images without objects
                    metric.img_ids = [dataset.get_data_info(index)['img_id'] for index in range(len(dataset))]
        test_cfg = config.model.test_cfg
        self.test_cfg = test_cfg.get('rcnn', test_cfg)
        self.difference = 0.0

    def __len__(self) -> int:
        return len(self.dataloader)

    @torch.no_grad()
    def run(self) -> Iterator[float]:
        """Run both models on each image; yields the largest difference of its predictions."""
        for data in self.dataloader:
            outputs = {name: model.test_step(copy.deepcopy(data)) for name, model in self.models.items()}
            for name, evaluator in self.evaluators.items():
                evaluator.process(copy.deepcopy(outputs[name]), data)
            difference = max(largest_difference(*pair, self.test_cfg) for pair in zip(*outputs.values()))
            self.difference = max(self.difference, difference)
            yield difference

    def metrics(self) -> dict[str, tuple[float, float]]:
        """Every metric of the PyTorch and of the exported model after all images; NaN if a model has no value."""
        # COCO's metric prints tables.
        with contextlib.redirect_stdout(io.StringIO()):
            pytorch, exported = (evaluator.evaluate(len(self)) for evaluator in self.evaluators.values())
        # COCO's metric returns nothing for a model without detections.
        nothing = float('nan')
        return {
            name: (float(pytorch.get(name, nothing)), float(exported.get(name, nothing)))
            for name in {**pytorch, **exported}
        }


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
