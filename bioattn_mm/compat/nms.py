"""Non-maximum suppression."""

import ctypes

import torchvision
from torch import Tensor

from .precision import upcast_half


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
