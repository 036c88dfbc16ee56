"""Comparison of exported models with the one in PyTorch on the same images."""

import contextlib
import copy
import io
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config, ConfigDict
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement, InstanceData
from torch import Tensor, nn

from ..errors import InputError
from ..training.config.pipelines import build_dataset
from .formats import runner_of

# No config pads images whose sides are multiples of this.
SIZE_DIVISOR = 32
PYTORCH = 'PyTorch'


class Verification:
    """Runs a model and what it was exported to on some of the test images, taken at equal distances.

    Args:
        config: Config of the model, as `at_one_size` returns it.
        models: The model in PyTorch, named `PYTORCH`, then each exported one by its name, with a `test_step`.
        num_images: Number of images, at most.

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
            for name in self.differences:
                pairs = zip(outputs[PYTORCH], outputs[name])
                found = [largest_difference(*pair, self.test_cfg) for pair in pairs]
                self.differences[name] = largest([self.differences[name], *found])
            yield


def at_one_size(config: Config, size: tuple[int, int] | None) -> Config:
    """A copy of a config with which PyTorch and an exported model compute the same.

    All images are resized to one size, (width, height) in pixels. It needs no padding, which an exported model would
    take for a part of the image while PyTorch's leaves it out. Without a size it is about 4 : 3 with the short side
    of testing, which is not the size that was traced.
    """
    config = copy.deepcopy(config)
    if size is None:
        height = min(scale_in_testing(config))
        size = [-(-side // SIZE_DIVISOR) * SIZE_DIVISOR for side in (4 * height // 3, height)]
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
    """The comparison of mmseg's segmentor, which takes whole images from now on, with what `formats` made of it.

    Args:
        config: Config of the model.
        model: The model, with its weights.
        exported: The files.
        size: (height, width) in pixels that the files take; None for any.
        num_images: As in `Verification`.
    """
    model.test_cfg = ConfigDict(mode='whole')
    models = {path.stem: with_network(model, runner_of(path)) for path in exported}
    return Verification(at_one_size(config, size and size[::-1]), {PYTORCH: model, **models}, num_images)


def with_network(model: nn.Module, run: Callable[[Tensor], Sequence[Tensor]]) -> nn.Module:
    """A segmentor of mmseg whose network is `run`: from images, (B, 3, H, W), to the logits of the head."""

    def encode_decode(images: Tensor, metas: list[dict]) -> Tensor:
        (logits,) = run(images)
        return F.interpolate(logits, images.shape[2:], mode='bilinear', align_corners=model.align_corners)

    other = copy.copy(model)
    other.encode_decode = encode_decode
    return other


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Context in which nothing is printed, nor logged except for errors."""
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


def evenly_spaced(items: Sequence, number: int) -> list:
    """At most `number` of the elements of a list, from all of it."""
    number = min(number, len(items))
    return [items[index * len(items) // number] for index in range(number)]


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
    return largest(differences)


def largest(differences: Sequence[float]) -> float:
    """The largest of some numbers; NaN if one is, of which Python's `max` makes whichever comes first."""
    return float(np.max(differences))


def from_closest(instances: InstanceData, others: InstanceData, side: int, test_cfg: dict) -> float:
    """The largest difference between a detection and the closest of its class among the others."""
    if len(instances) == 0:
        return 0.0
    limit = test_cfg.get('max_per_img', 0)
    lowest = float(others.scores.min()) if len(others) >= limit > 0 else test_cfg.get('score_thr', 0.0)
    alone = (instances.scores - lowest).clamp(min=0)
    if len(others) == 0:
        return float(alone.max())

    boxes = torch.cdist(instances.bboxes, others.bboxes, p=math.inf) / side
    scores = torch.cdist(instances.scores[:, None], others.scores[:, None], p=math.inf)
    difference = torch.maximum(boxes, scores)
    if 'masks' in instances:
        masks, other_masks = (each.masks.flatten(1).float() for each in (instances, others))
        # The squared distance of masks of zeros and ones is the number of pixels that differ.
        difference = torch.maximum(difference, torch.cdist(masks, other_masks).square() / masks.shape[1])
    difference = difference.masked_fill(instances.labels[:, None] != others.labels, torch.inf)
    return float(torch.minimum(difference.amin(1), alone).max())
