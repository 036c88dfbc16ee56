"""Masks of Mask R-CNN and its kin as COCO's run lengths, of which one at a time is an array of the image's size."""

import functools
from collections.abc import Callable

import numpy as np
import torch
from mmengine.structures import InstanceData
from pycocotools import mask as coco_mask
from torch import Tensor, nn

from ..datasets.checks import read_run_lengths


def encode_masks(model: nn.Module, score_thr: float) -> None:
    """Let a detector leave out what has a lower score before it makes masks, and give these as run lengths.

    Args:
        model: The detector, which is changed; one without a mask head in a `roi_head` stays as it is.
        score_thr: The threshold.
    """
    roi_head = getattr(model, 'roi_head', None)
    mask_head = getattr(roi_head, 'mask_head', None)
    heads = mask_head if isinstance(mask_head, nn.ModuleList) else [mask_head]
    if not all(hasattr(head, '_predict_by_feat_single') for head in heads):
        return
    roi_head.predict_mask = functools.partial(_predict_mask, roi_head.predict_mask, score_thr)
    for head in heads:
        head._predict_by_feat_single = functools.partial(_masks_one_by_one, head._predict_by_feat_single)


def encode_arrays(objects: InstanceData) -> None:
    """Give the masks of detections as run lengths, where they are bool (N, H, W), as of heads without RoIs."""
    if 'masks' in objects and not isinstance(objects.masks, list):
        objects.masks = [coco_mask.encode(np.asfortranarray(mask, np.uint8)) for mask in objects.masks]


def decode_mask(run_lengths: dict, size: tuple[int, int] | None = None) -> np.ndarray:
    """The mask of COCO's run lengths, bool.

    Args:
        run_lengths: With `size` (H, W).
        size: (height, width) of the result, whose pixels are the nearest ones of the mask; None for that of the mask.
            The whole mask is not made for it.
    """
    height, width = run_lengths['size']
    if size in (None, (height, width)):
        return coco_mask.decode(run_lengths).astype(bool)
    # Runs go from top to bottom through one column after the other, and every second one is of the mask.
    ends = np.cumsum(read_run_lengths(run_lengths['counts'].decode()))
    rows, columns = (
        ((np.arange(new) + 0.5) * (old / new)).astype(np.int64) for old, new in zip((height, width), size)
    )
    return np.searchsorted(ends, columns * height + rows[:, None], side='right') % 2 == 1


def _predict_mask(original: Callable, score_thr: float, *args: object, **options: object) -> list[InstanceData]:
    """Make masks for what has a high enough score of `results_list`, by name (HTC, SCNet) or the last by place."""
    if 'results_list' not in options:
        *args, options['results_list'] = args
    options['results_list'] = [results[results.scores >= score_thr] for results in options['results_list']]
    return original(*args, **options)


def _masks_one_by_one(
    original: Callable, mask_preds: Tensor, bboxes: Tensor, labels: Tensor, *args: object, **options: object
) -> list[dict]:
    """What mmdet does for all objects of an image, for one after the other, to run lengths."""
    found = []
    for index in range(len(bboxes)):
        part = slice(index, index + 1)
        # mmdet rescales the boxes in place, which a slice of them shares.
        (mask,) = original(mask_preds[part], bboxes[part], labels[part], *args, **options)
        found.append(_encode(mask.to(torch.uint8).cpu().numpy(), bboxes[index].tolist()))
    return found


def _encode(mask: np.ndarray, box: list[float]) -> dict:
    """The run lengths of a mask, uint8 (H, W), that is empty outside of a box x1, y1, x2, y2."""
    margin = 2 + 0.1 * max(box[2] - box[0], box[3] - box[1])  # of a cell of the mask, into which mmdet lets it reach
    left, top = (max(int(start - margin), 0) for start in box[:2])
    right, bottom = (int(end + margin) + 1 for end in box[2:])
    # pycocotools wants it in Fortran's order, and to bring all of it into that takes longer than all else.
    ordered = np.zeros(mask.shape[::-1], np.uint8).T
    ordered[top:bottom, left:right] = mask[top:bottom, left:right]
    return coco_mask.encode(ordered)
