"""Operators on boxes: overlaps and non-maximum suppression."""

import ctypes

import torch
import torchvision
from torch import Tensor

from .precision import upcast_half

LINEAR, GAUSSIAN = 1, 2  # `method` of soft-NMS; 0 is 'naive'
IOU, IOF = 0, 1  # `mode` of overlaps: intersection over union, over the area of the first box


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
    return torchvision.ops.nms(boxes, upcast_half(scores), iou_threshold)


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
    """Indices of the boxes that remain after soft non-maximum suppression (Bodla et al., ICCV 2017).

    Each box that is taken, the one of highest score, lowers the scores of the others by their IoU with it.

    Args:
        boxes: (N, 4), as (x1, y1, x2, y2), in host memory.
        scores: (N,).
        dets: Boxes and scores in the order in which they are taken, written to the first rows of (N, 5).
        iou_threshold: IoU from which 'naive' takes a box's score to 0 and 'linear' lowers it.
        sigma: Width of 'gaussian'.
        min_score: A box whose score falls below this is removed.
        method: 0 is 'naive', 1 'linear', 2 'gaussian'.
        offset: 0 or 1, as in `nms`.

    Returns:
        Indices of the boxes in `dets`, int64 (M,).
    """
    left = torch.cat([boxes, scores[:, None]], dim=1).float()
    indices, taken = torch.arange(len(left)), []
    while len(left):
        # The best one changes places with the first, as in mmcv: the order decides between equal scores.
        best = left[:, 4].argmax()
        order = torch.arange(len(left))
        order[0], order[best] = best, 0
        left, indices = left[order], indices[order]
        dets[len(taken)] = left[0]
        taken.append(indices[0])
        overlap = _overlaps(left[0], left[1:], IOU, offset)
        if method == GAUSSIAN:
            weight = (-overlap.square() / sigma).exp()
        else:
            weight = torch.where(overlap >= iou_threshold, 1 - overlap if method == LINEAR else 0.0, 1.0)
        left, indices = left[1:], indices[1:]
        left[:, 4] *= weight
        remaining = _filled_from_the_end(~(left[:, 4] < min_score))
        left, indices = left[remaining], indices[remaining]
    return torch.tensor(taken, dtype=torch.int64)


def _filled_from_the_end(remains: Tensor) -> Tensor:
    """Indices of the boxes that remain; the last ones take the places of those removed before them, as in mmcv."""
    indices = remains.nonzero()[:, 0]
    holes = (~remains[: len(indices)]).nonzero()[:, 0]
    result = torch.arange(len(indices))
    result[holes] = indices.flip(0)[: len(holes)]
    return result


def nms_match(dets: Tensor, iou_threshold: float) -> list[list[int]]:
    """Groups of boxes by non-maximum suppression: each kept box with those that it suppresses.

    Args:
        dets: (N, 5), as (x1, y1, x2, y2, score), in host memory.
        iou_threshold: A box is suppressed if its IoU with a kept box of higher score is at least this.

    Returns:
        Indices of each group by descending score.
    """
    order, groups = dets[:, 4].sort(descending=True).indices, []
    while len(order):
        suppressed = _overlaps(dets[order[0]], dets[order[1:]], IOU, 0) >= iou_threshold
        groups.append([int(order[0]), *order[1:][suppressed].tolist()])
        order = order[1:][~suppressed]
    return groups


def bbox_overlaps(bboxes1: Tensor, bboxes2: Tensor, ious: Tensor, mode: int, aligned: bool, offset: int) -> None:
    """IoU, or intersection over the first box's area, of all pairs of boxes, or of the boxes of the same index.

    Args:
        bboxes1: (N, 4), as (x1, y1, x2, y2).
        bboxes2: (M, 4); with `aligned` M is N.
        ious: Written in place, (N, M), or (N,) with `aligned`.
        mode: 0 for IoU, 1 for the intersection over the area of the first box.
        aligned: Whether only boxes of the same index are compared.
        offset: 0 or 1, as in `nms`.
    """
    boxes, others = upcast_half(bboxes1), upcast_half(bboxes2)
    ious.copy_(_overlaps(boxes if aligned else boxes[:, None], others, mode, offset))


def _overlaps(boxes: Tensor, others: Tensor, mode: int, offset: int) -> Tensor:
    """IoU, or intersection over the area of `boxes`, of boxes (..., 4 or more); NaN without areas."""
    x1, y1, x2, y2 = boxes[..., :4].unbind(-1)
    other_x1, other_y1, other_x2, other_y2 = others[..., :4].unbind(-1)
    width = (x2.minimum(other_x2) - x1.maximum(other_x1) + offset).clamp(min=0)
    height = (y2.minimum(other_y2) - y1.maximum(other_y1) + offset).clamp(min=0)
    area = (x2 - x1 + offset) * (y2 - y1 + offset)
    if mode == IOF:
        return width * height / area
    other_area = (other_x2 - other_x1 + offset) * (other_y2 - other_y1 + offset)
    return width * height / (area + other_area - width * height)
