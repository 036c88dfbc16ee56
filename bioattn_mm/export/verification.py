"""Comparison of exported models with the one in PyTorch on the same images."""

import contextlib
import copy
import io
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from mmengine.config import Config, ConfigDict
from mmengine.evaluator import Evaluator
from mmengine.logging import MMLogger
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement, InstanceData
from torch import Tensor, nn

from ..errors import InputError
from ..run_config.pipelines import build_dataset
from .formats import runner_of

# No config pads images whose sides are multiples of this.
SIZE_DIVISOR = 32
PYTORCH = 'PyTorch'
# Metrics that a bound is put on, and how many points 1 of them is: mmdet gives fractions, mmseg per cent.
POINTS = dict(mIoU=1, PQ=1, bbox_mAP=100, segm_mAP=100)


class Verification:
    """Runs a model and what it was exported to on some of the test images, taken at equal distances.

    Args:
        config: Config of the model, as `at_one_size` returns it.
        models: The model in PyTorch, named `PYTORCH`, then each exported one by its name. Their `test_step` takes
            what a data loader gives, and returns data samples.
        num_images: Number of images, at most; at full size each takes many seconds.

    Attributes:
        models: As given.
        num_available: Number of test images that there are.
        differences: The largest difference from PyTorch so far (see `largest_difference`) of each exported model.
        seconds: Time for the fastest image of each model, with its preprocessing and postprocessing.
    """

    def __init__(self, config: Config, models: dict[str, object], num_images: int) -> None:
        self.models = models
        dataset = build_dataset(config.test_dataloader.dataset)
        self.num_available = len(dataset)
        dataset.get_subset_(evenly_spaced(range(len(dataset)), num_images))
        self.dataloader = Runner.build_dataloader({**config.test_dataloader, 'dataset': dataset})
        with _quiet():
            self.evaluators = {name: Evaluator(copy.deepcopy(config.test_evaluator)) for name in self.models}
        for evaluator in self.evaluators.values():
            evaluator.dataset_meta = dataset.metainfo
            for metric in evaluator.metrics:
                if hasattr(metric, 'img_ids'):  # COCO's, which otherwise counts all others as images without objects
                    metric.img_ids = [dataset.get_data_info(index)['img_id'] for index in range(len(dataset))]
        test_cfg = config.model.test_cfg
        self.test_cfg = test_cfg.get('rcnn', test_cfg)
        self.differences = {name: 0.0 for name in models if name != PYTORCH}
        self.seconds = dict.fromkeys(models, float('inf'))

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
        # COCO's metric returns nothing for a model without detections.
        with _quiet():
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


def at_one_size(config: Config, size: tuple[int, int] | None) -> Config:
    """A copy of a config with which PyTorch and an exported model compute the same.

    All images are resized to one size. It needs no padding, which an exported model would take for a part of the
    image while PyTorch's leaves it out.

    Args:
        config: Config of the model.
        size: (width, height) in pixels that the exported model takes. None if it takes any: about 4 : 3 with the
            short side of testing, which is not the size that was traced.
    """
    config = copy.deepcopy(config)
    size = size or dynamic_size(config)
    for pipeline in (config.get('test_pipeline', ()), config.test_dataloader.dataset.pipeline):
        for step in pipeline:
            if step['type'] == 'Resize':
                step.update(scale=tuple(size), keep_ratio=False)
    for stage in ('rpn', 'rcnn'):
        if 'nms' in config.model.test_cfg.get(stage, {}):
            # One class or level at a time. By default mmcv shifts their boxes thousands of pixels apart and takes
            # them together, but there float32 rounds so coarsely that other boxes are suppressed.
            config.model.test_cfg[stage].nms.split_thr = 1
    config.test_dataloader.update(num_workers=0, persistent_workers=False, batch_size=1)
    return config


def verification_of_segmentor(
    config: Config, model: nn.Module, exported: Sequence[Path], size: tuple[int, int] | None, num_images: int
) -> Verification:
    """The comparison of mmseg's segmentor with the files that `bioattn_mm.export.formats` made of it.

    Args:
        config: Config of the model.
        model: The model, with its weights; from now on it takes whole images instead of sliding windows.
        exported: The files.
        size: (height, width) in pixels that the files take; None for any.
        num_images: As in `Verification`.
    """
    model.test_cfg = ConfigDict(mode='whole')
    models = {path.stem: ExportedSegmentor(model, runner_of(path)) for path in exported}
    return Verification(at_one_size(config, size and size[::-1]), {PYTORCH: model, **models}, num_images)


class ExportedSegmentor:
    """An exported network with what mmseg's segmentor does before and after its own.

    Args:
        model: The segmentor.
        run: From images, (B, 3, H, W), to the logits of the head.
    """

    def __init__(self, model: nn.Module, run: Callable[[Tensor], Sequence[Tensor]]) -> None:
        self._model, self._run = model, run

    def test_step(self, data: dict) -> list[BaseDataElement]:
        """As that of mmseg's segmentors."""
        data = self._model.data_preprocessor(data, False)
        (logits,) = self._run(data['inputs'])
        logits = F.interpolate(
            logits, data['inputs'].shape[2:], mode='bilinear', align_corners=self._model.align_corners
        )
        return self._model.postprocess_result(logits, data['data_samples'])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context in which metrics neither print nor log their tables."""
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


def evenly_spaced(items: Sequence, number: int) -> list:
    """At most `number` of the elements of a list, from all of it."""
    number = min(number, len(items))
    return [items[index * len(items) // number] for index in range(number)]


def dynamic_size(config: Config) -> tuple[int, int]:
    """(width, height) of about 4 : 3 with the short side of testing, rounded up to multiples of SIZE_DIVISOR."""
    height = min(scale_in_testing(config))
    return tuple(-(-side // SIZE_DIVISOR) * SIZE_DIVISOR for side in (4 * height // 3, height))


def scale_in_testing(config: Config) -> tuple[int, int]:
    """`scale` of the one Resize of the test pipeline.

    Raises:
        InputError: There are none or several.
    """
    resizes = [step for step in config.test_dataloader.dataset.pipeline if step['type'] == 'Resize']
    if len(resizes) != 1:
        raise InputError(f'the test pipeline must have one Resize, this config has {len(resizes)}')
    return tuple(resizes[0].scale)


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
