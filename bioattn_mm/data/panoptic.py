"""Panoptic annotations in COCO's format: a PNG whose colours are the IDs of segments, and what each segment is."""

import cv2
import numpy as np
from PIL import Image

from ..mmcv_ops.panoptic import VOID, id2rgb

# IDs of segments are this far apart, so that their colours are easy to tell apart and use all channels.
STEP = 40_009


def box_of(mask: np.ndarray) -> list[int]:
    """The box around a (H, W) bool mask with at least one pixel: x, y, width and height in pixels."""
    return list(cv2.boundingRect(mask.astype(np.uint8)))


class PanopticMap:
    """The segments of an image of a height and width in pixels, none of which overlap."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.ids = np.full(shape, VOID, np.int32)  # the ID of the segment of each pixel
        self._added: list[tuple[int, int, bool]] = []

    def add(self, mask: np.ndarray, category_id: int | None, crowd: bool = False) -> None:
        """Add a segment, (H, W) bool, in front of those before it; without a category its pixels are unlabelled."""
        if category_id is None:
            self.ids[mask] = VOID
            return
        segment_id = STEP * (len(self._added) + 1)
        self.ids[mask] = segment_id
        self._added.append((segment_id, category_id, crowd))

    def segments(self) -> list[dict]:
        """COCO's `segments_info`: the segments of which something is visible."""
        segments = []
        for segment_id, category_id, crowd in self._added:
            mask = self.ids == segment_id
            if mask.any():
                place = dict(bbox=box_of(mask), area=int(mask.sum()))
                segments.append(dict(id=segment_id, category_id=category_id, iscrowd=int(crowd), **place))
        return segments

    def image(self) -> Image.Image:
        """The annotation, to be saved as PNG."""
        return Image.fromarray(id2rgb(self.ids))
