"""Non-maximum suppression: nms, soft-nms and nms_match."""

import ctypes

import torch
import torchvision
from torch import Tensor

from .precision import upcast_half

# Values of `method` in `softnms`.
NAIVE, LINEAR, GAUSSIAN = range(3)


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Indices of the boxes that remain after non-maximum suppression.

    Args:
        boxes: (N, 4), as (x1, y1, x2, y2).
        scores: (N,).
        iou_threshold: A box is removed if its IoU with a kept box of higher score is above this.
        offset: Width and height of a box are x2 - x1 + offset and y2 - y1 + offset; 0 or 1.

    Returns:
        Kept indices by descending score, int64 (M,).
    """
    boxes = upcast_half(boxes)
    if offset:
        # Moving x2 and y2 by the offset gives the same widths, heights and intersections.
        boxes = boxes + boxes.new_tensor([0, 0, offset, offset])
    # mmcv compares with the threshold in float32: for 0.6, an IoU of exactly 3 / 5 is not above it.
    iou_threshold = ctypes.c_float(iou_threshold).value
    return torchvision.ops.nms(boxes, scores.to(boxes.dtype), iou_threshold)


def softnms(
    boxes: Tensor,
    scores: Tensor,
    dets: Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> Tensor:
    """Take the boxes by descending score; each box taken lowers the scores of the boxes that it overlaps.

    A score is multiplied by a function of the IoU with the box taken::

        naive:     0        where IoU >= iou_threshold, else 1
        linear:    1 - IoU  where IoU >= iou_threshold, else 1
        gaussian:  exp(-IoU^2 / sigma)

    and a box whose score is then below `min_score` is dropped. The box with the highest score is always taken.

    Args:
        boxes: (N, 4), as (x1, y1, x2, y2).
        scores: (N,).
        dets: Written in place, (N, 5): the boxes taken, in order, with their lowered scores in the last column. The
            rows after them are not changed.
        iou_threshold: For the naive and linear methods.
        sigma: For the gaussian method.
        min_score: Boxes with a lower score are dropped.
        method: 0 naive, 1 linear, 2 gaussian.
        offset: Width and height of a box are x2 - x1 + offset and y2 - y1 + offset; 0 or 1.

    Returns:
        Indices of the boxes taken, int64 (M,).
    """
    # Boxes [0, taken) are taken, the rest wait. Of waiting boxes with the same score the first is taken, so that
    # their order must be mmcv's: the box taken is swapped with the first waiting one, and a dropped box is replaced
    # by the last one.
    boxes, scores = upcast_half(boxes).clone(), upcast_half(scores).clone()
    indices = torch.arange(len(boxes), device=boxes.device)
    areas = _areas(boxes, offset)
    waiting = (boxes, scores, indices, areas)

    taken = 0
    while taken < len(scores):
        highest = taken + scores[taken:].argmax()
        swap = torch.stack([highest.new_tensor(taken), highest])
        for tensor in waiting:
            tensor[swap] = tensor[swap.flip(0)]
        first, rest = slice(taken, taken + 1), slice(taken + 1, None)

        iou = _iou(boxes[first], areas[first], boxes[rest], areas[rest], offset)
        if method == NAIVE:
            decay = torch.where(iou >= iou_threshold, 0.0, 1.0)
        elif method == LINEAR:
            decay = torch.where(iou >= iou_threshold, 1 - iou, 1.0)
        else:
            decay = torch.exp(-iou * iou / sigma)
        scores[rest] *= decay

        dropped = scores[rest] < min_score
        num_left = len(dropped) - int(dropped.sum())
        vacant = dropped[:num_left].nonzero().squeeze(1)
        moving = num_left + (~dropped[num_left:]).nonzero().squeeze(1).flip(0)
        for tensor in waiting:
            tensor[rest][vacant] = tensor[rest][moving]
        taken += 1
        boxes, scores, indices, areas = waiting = tuple(tensor[: taken + num_left] for tensor in waiting)

    dets[:taken, :4] = boxes
    dets[:taken, 4] = scores
    return indices


def nms_match(dets: Tensor, iou_threshold: float) -> list[list[int]]:
    """Groups of boxes: each box that nms keeps, with the boxes that it suppresses.

    Args:
        dets: (N, 5), as (x1, y1, x2, y2, score).
        iou_threshold: A box joins the group of a kept box if their IoU is at least this.

    Returns:
        Indices of each group by descending score, the kept box first; groups by the score of the kept box.
    """
    dets = upcast_half(dets)
    waiting = dets[:, 4].argsort(descending=True, stable=True)
    boxes = dets[waiting, :4]
    areas = _areas(boxes, 0)

    groups = []
    while len(waiting):
        suppressed = _iou(boxes[:1], areas[:1], boxes, areas, 0) >= iou_threshold
        suppressed[0] = True
        groups.append(waiting[suppressed].tolist())
        waiting, boxes, areas = waiting[~suppressed], boxes[~suppressed], areas[~suppressed]
    return groups


def _areas(boxes: Tensor, offset: int) -> Tensor:
    width, height = (boxes[:, 2:] - boxes[:, :2] + offset).unbind(1)
    return width * height


def _iou(box: Tensor, area: Tensor, boxes: Tensor, areas: Tensor, offset: int) -> Tensor:
    """IoU of `box` (1, 4) and each of `boxes` (N, 4); NaN for boxes without area."""
    top_left = torch.maximum(box[:, :2], boxes[:, :2])
    bottom_right = torch.minimum(box[:, 2:], boxes[:, 2:])
    width, height = (bottom_right - top_left + offset).clamp(min=0).unbind(1)
    intersection = width * height
    return intersection / (area + areas - intersection)
