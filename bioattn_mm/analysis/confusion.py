"""Which classes a model takes for which: confusion matrices of segmentation, by pixels, and of detection, by boxes.

A matrix of counts is int64 (classes + 1, classes + 1): rows are the ground truth, columns the predictions. The last
row and column stand for no class. In detection they count false alarms and missed objects; in segmentation the last
row counts pixels whose label is none of the classes, and the last column is 0.
"""

import numpy as np
import torch
from mmdet.structures.bbox import get_box_tensor
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner
from mmengine.structures import InstanceData
from pycocotools import mask as coco_mask
from torch import Tensor

from ..errors import InputError

IGNORE_INDEX = 255  # of mmseg's IoUMetric, unless a config says otherwise


class ConfusionHook(Hook):
    """Counts a confusion matrix in a test, image by image; keeps no predictions.

    Args:
        num_classes: Number of classes.
        ignore_index: Label of the pixels that do not count (segmentation).
        iou_thr: IoU from which a box can match an object (detection).
        score_thr: Score from which a box counts (detection).

    Attributes:
        counts: The matrix.

    Raises:
        InputError: In the test: the test images have no ground truth, or the model predicts no boxes.
    """

    def __init__(
        self, num_classes: int, ignore_index: int = IGNORE_INDEX, iou_thr: float = 0.5, score_thr: float = 0.3
    ) -> None:
        self.num_classes = num_classes
        self.ignore_index = ignore_index
        self.iou_thr = iou_thr
        self.score_thr = score_thr
        self.counts = np.zeros((num_classes + 1,) * 2, np.int64)

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch: object = None, outputs: object = None
    ) -> None:
        for sample in outputs:
            if 'pred_sem_seg' in sample:
                if 'gt_sem_seg' not in sample:
                    raise InputError('the test images have no label maps: let LoadAnnotations load them')
                labels, predictions = sample.gt_sem_seg.data, sample.pred_sem_seg.data
                self.counts += count_pixels(labels, predictions, self.num_classes, self.ignore_index)
            else:
                if 'pred_instances' not in sample:
                    raise InputError(
                        'the model predicts no boxes: of panoptic ones, set model.test_cfg.instance_on=True'
                    )
                if 'labels' not in sample.gt_instances:
                    raise InputError('the test images have no boxes: let LoadAnnotations load them')
                instances = sample.gt_instances, sample.ignored_instances, sample.pred_instances
                self.counts += count_boxes(*instances, self.num_classes, self.iou_thr, self.score_thr)


def ignore_index_of(config: Config) -> int:
    """Label of the pixels that the config's test leaves out."""
    evaluators = (
        config.test_evaluator if isinstance(config.test_evaluator, (list, tuple)) else [config.test_evaluator]
    )
    return next((item['ignore_index'] for item in evaluators if 'ignore_index' in item), IGNORE_INDEX)


def count_pixels(labels: Tensor, predictions: Tensor, num_classes: int, ignore_index: int) -> np.ndarray:
    """Count the pixels of an image by label and prediction.

    Args:
        labels: Label map, integers of any shape.
        predictions: Predicted classes in the same shape, each from 0 to `num_classes` - 1.
        num_classes: Number of classes.
        ignore_index: Label of the pixels that do not count.

    Returns:
        The matrix (see above).
    """
    labels, predictions = labels.to(predictions.device).flatten().long(), predictions.flatten().long()
    kept = labels != ignore_index
    labels, predictions = labels[kept], predictions[kept]
    labels = torch.where((labels >= 0) & (labels < num_classes), labels, num_classes)
    size = num_classes + 1
    return torch.bincount(labels * size + predictions, minlength=size**2).reshape(size, size).cpu().numpy()


def count_boxes(
    truth: InstanceData,
    ignored: InstanceData,
    predicted: InstanceData,
    num_classes: int,
    iou_thr: float,
    score_thr: float,
) -> np.ndarray:
    """Match the predicted boxes of an image to its objects, one to one, and count the pairs by class.

    Boxes and objects of the same class are matched first, as COCO does, so that the matrix gives COCO's precision and
    recall at these thresholds: the boxes choose in the order of their scores, each the object with the largest IoU.
    What remains of a class but lies on an ignored region of it (a crowd) does not count. Then the rest is matched
    across classes in the same way.

    Args:
        truth: `bboxes` (N, 4) as x1, y1, x2, y2 and `labels` (N,) of the objects.
        ignored: The same of ignored regions.
        predicted: The same of the predictions, with `scores`.
        num_classes: Number of classes.
        iou_thr: IoU from which a box can match an object, or intersection over the box's area for an ignored region.
        score_thr: Score from which a box counts.

    Returns:
        The matrix (see above).
    """
    predicted = predicted[predicted.scores >= score_thr]
    predicted = predicted[predicted.scores.sort(descending=True, stable=True).indices]
    num_objects = len(truth)
    classes = np.concatenate([instances.labels.cpu().numpy() for instances in (truth, ignored)]).astype(int)
    labels = predicted.labels.cpu().numpy().astype(int)
    overlaps = _overlaps(predicted, truth, ignored)
    overlaps[overlaps < iou_thr] = 0
    same_class = labels[:, None] == classes[None]

    matches = np.full(len(labels), -1)  # the object of each box
    is_free = np.ones(num_objects, bool)

    def match(box: int, allowed: np.ndarray) -> None:
        candidates = overlaps[box, :num_objects] * is_free * allowed
        if candidates.any():
            matches[box] = candidates.argmax()
            is_free[matches[box]] = False

    for box in range(len(labels)):
        match(box, same_class[box, :num_objects])
    on_ignored = (overlaps * same_class)[:, num_objects:].any(axis=1)
    counted = (matches >= 0) | ~on_ignored
    for box in np.flatnonzero((matches < 0) & counted):
        match(box, ~same_class[box, :num_objects])

    counts = np.zeros((num_classes + 1,) * 2, np.int64)
    rows = np.where(matches >= 0, np.append(classes, num_classes)[matches], num_classes)
    np.add.at(counts, (rows[counted], labels[counted]), 1)
    np.add.at(counts, (classes[:num_objects][is_free], num_classes), 1)
    return counts


def _overlaps(predicted: InstanceData, truth: InstanceData, ignored: InstanceData) -> np.ndarray:
    """IoU of boxes with objects, and the part of each box in each ignored region: (boxes, objects + regions)."""
    num_objects, num_regions = len(truth), len(ignored)
    boxes = []
    for instances in (predicted, truth, ignored):
        corners = get_box_tensor(instances.bboxes).cpu().double().reshape(-1, 4)
        boxes.append(torch.cat([corners[:, :2], corners[:, 2:] - corners[:, :2]], dim=1).numpy())
    if not len(boxes[0]) or not num_objects + num_regions:
        return np.zeros((len(boxes[0]), num_objects + num_regions))
    return coco_mask.iou(boxes[0], np.concatenate(boxes[1:]), [0] * num_objects + [1] * num_regions)


def measure_classes(counts: np.ndarray, classes: tuple[str, ...]) -> list[dict]:
    """What follows from a matrix for each class.

    Returns:
        For each class `truth`, `predicted` and `right`, its numbers of pixels, or of objects, boxes and matches; and
        `precision`, `recall`, `F1` and `IoU` (of areas of pixels) in %, NaN where there is nothing to divide by.
    """
    right = counts.diagonal()[:-1]
    truth, predicted = counts[:-1].sum(axis=1), counts[:, :-1].sum(axis=0)
    with np.errstate(divide='ignore', invalid='ignore'):
        measures = dict(
            precision=100 * right / predicted,
            recall=100 * right / truth,
            F1=200 * right / (predicted + truth),
            IoU=100 * right / (predicted + truth - right),
        )
    return [
        dict(
            {
                'class': name,
                'truth': int(truth[index]),
                'predicted': int(predicted[index]),
                'right': int(right[index]),
            },
            **{measure: float(values[index]) for measure, values in measures.items()},
        )
        for index, name in enumerate(classes)
    ]


def confused_pairs(counts: np.ndarray, classes: tuple[str, ...]) -> list[dict]:
    """The pairs of different classes of which the one was taken for the other, the most frequent first.

    Returns:
        For each pair the classes `truth` and `predicted`, the number, and it in % of all of the class `truth` and of
        all that was predicted to be `predicted`.
    """
    of_truth, of_predicted = counts.sum(axis=1), counts.sum(axis=0)
    between = counts[:-1, :-1].copy()
    np.fill_diagonal(between, 0)
    order = np.argsort(-between, axis=None, kind='stable')
    pairs = []
    for row, column in zip(*np.unravel_index(order[: np.count_nonzero(between)], between.shape)):
        number = int(between[row, column])
        pairs.append(
            dict(
                truth=classes[row],
                predicted=classes[column],
                count=number,
                percent_of_truth=100 * number / int(of_truth[row]),
                percent_of_predicted=100 * number / int(of_predicted[column]),
            )
        )
    return pairs


def normalize(counts: np.ndarray, by: str) -> np.ndarray:
    """A matrix in % of the rows ('truth'), the columns ('prediction') or everything ('all')."""
    axis = dict(truth=1, prediction=0, all=None)[by]
    total = counts.sum(axis=axis, keepdims=True)
    return 100 * counts / np.maximum(total, 1)
