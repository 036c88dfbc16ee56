"""Instance masks that take time in proportion to the objects, which fill a few percent of most images.

mmdet keeps a bitmap of the whole image for each object, which every resize, flip, crop and worker handles.
"""

from __future__ import annotations

import functools

import cv2
import mmcv
import numpy as np
import torch
from mmdet.datasets.transforms import LoadAnnotations
from mmdet.structures.bbox import HorizontalBoxes, get_box_type
from mmdet.structures.mask import BitmapMasks
from torch import Tensor


class BoxedMasks(BitmapMasks):
    """mmdet's `BitmapMasks`, of which only the rectangles around the objects are kept.

    All methods give mmdet's pixels. From the first look at the attribute `masks` on, which holds all pixels, it is an
    ordinary `BitmapMasks`.

    Args:
        parts: For each object its pixels in a rectangle, (h, w) uint8, and the rectangle's left and top in pixels.
            Outside of it the mask is 0.
        height: Size of the image in pixels.
        width: The same.
    """

    def __init__(self, parts: list[tuple[np.ndarray, int, int]], height: int, width: int) -> None:
        self.parts, self.height, self.width = parts, height, width

    @classmethod
    def from_bitmaps(cls, masks: np.ndarray) -> BoxedMasks:
        """Keep the rectangles around the pixels of masks, (N, H, W) uint8, that are not 0."""
        parts = []
        for mask in masks:
            left, top, width, height = cv2.boundingRect(mask)
            parts.append((mask[top : top + height, left : left + width].copy(), left, top))
        return cls(parts, *masks.shape[1:])

    @property
    def masks(self) -> np.ndarray:
        """All pixels, (N, H, W) uint8, which a caller may change: the rectangles are dropped."""
        masks = np.zeros((len(self.parts), self.height, self.width), np.uint8)
        for mask, (part, left, top) in zip(masks, self.parts):
            mask[top : top + part.shape[0], left : left + part.shape[1]] = part
        del self.parts
        self.__class__ = BitmapMasks
        self.masks = masks
        return masks

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, index: int | slice | np.ndarray) -> BoxedMasks:
        chosen = np.atleast_1d(np.arange(len(self.parts))[index])
        return BoxedMasks([self.parts[each] for each in chosen], self.height, self.width)

    def rescale(self, scale: float | tuple[int, int], interpolation: str = 'nearest') -> BitmapMasks:
        new_width, new_height = mmcv.rescale_size((self.width, self.height), scale)
        return self.resize((new_height, new_width), interpolation)

    def resize(self, out_shape: tuple[int, int], interpolation: str = 'nearest') -> BitmapMasks:
        if interpolation != 'nearest':
            return super().resize(out_shape, interpolation)
        rows = nearest_sources(self.height, out_shape[0])
        columns = nearest_sources(self.width, out_shape[1])
        parts = []
        for part, left, top in self.parts:
            first_row, last_row = np.searchsorted(rows, (top, top + part.shape[0]))
            first_column, last_column = np.searchsorted(columns, (left, left + part.shape[1]))
            part = part.take(columns[first_column:last_column] - left, axis=1)
            part = part.take(rows[first_row:last_row] - top, axis=0)
            parts.append((part, int(first_column), int(first_row)))
        return BoxedMasks(parts, *out_shape)

    def flip(self, flip_direction: str = 'horizontal') -> BoxedMasks:
        code = dict(horizontal=1, vertical=0, diagonal=-1)[flip_direction]
        parts = []
        for part, left, top in self.parts:
            if flip_direction != 'vertical':
                left = self.width - left - part.shape[1]
            if flip_direction != 'horizontal':
                top = self.height - top - part.shape[0]
            parts.append((cv2.flip(part, code) if part.size else part, left, top))
        return BoxedMasks(parts, self.height, self.width)

    def crop(self, bbox: np.ndarray) -> BoxedMasks:
        x1, x2 = (int(x) for x in bbox[0::2].clip(0, self.width))
        y1, y2 = (int(y) for y in bbox[1::2].clip(0, self.height))
        x2, y2 = max(x2, x1 + 1), max(y2, y1 + 1)
        parts = []
        for part, left, top in self.parts:
            part = part[max(y1 - top, 0) : max(y2 - top, 0), max(x1 - left, 0) : max(x2 - left, 0)]
            inside = part.size > 0
            parts.append((part.copy(), max(left - x1, 0) if inside else 0, max(top - y1, 0) if inside else 0))
        return BoxedMasks(parts, y2 - y1, x2 - x1)

    def pad(self, out_shape: tuple[int, int], pad_val: int = 0) -> BitmapMasks:
        return super().pad(out_shape, pad_val) if pad_val else BoxedMasks(self.parts, *out_shape)

    @property
    def areas(self) -> np.ndarray:
        return np.array([part.sum(dtype=np.uint64) for part, _, _ in self.parts], np.uint64)

    def get_bboxes(self, dst_type: str | type = 'hbb') -> object:
        _, box_type = get_box_type(dst_type)
        if box_type is not HorizontalBoxes:
            return super().get_bboxes(dst_type)
        boxes = np.zeros((len(self.parts), 4), np.float32)
        for box, (part, left, top) in zip(boxes, self.parts):
            inner_left, inner_top, width, height = cv2.boundingRect(part) if part.size else (0, 0, 0, 0)
            if width:
                left, top = left + inner_left, top + inner_top
                box[:] = left, top, left + width, top + height
        return HorizontalBoxes(boxes)

    def to_tensor(self, dtype: torch.dtype, device: str | torch.device) -> Tensor:
        """All pixels, (N, H, W); only those in the rectangles are sent to the device."""
        masks = torch.zeros((len(self.parts), self.height, self.width), dtype=dtype, device=device)
        for mask, (part, left, top) in zip(masks, self.parts):
            mask[top : top + part.shape[0], left : left + part.shape[1]] = torch.from_numpy(part).to(device)
        return masks

    @classmethod
    def cat(cls, masks: list[BitmapMasks]) -> BitmapMasks:
        if not all(isinstance(each, BoxedMasks) for each in masks):
            return BitmapMasks.cat(masks)
        return cls([part for each in masks for part in each.parts], masks[0].height, masks[0].width)


class BoxedLoadAnnotations(LoadAnnotations):
    """mmdet's `LoadAnnotations`, which loads masks as `BoxedMasks`."""

    def _load_masks(self, results: dict) -> None:
        height, width = results['ori_shape']
        parts = []
        for mask in self._process_masks(results):
            decoded = self._poly2mask(mask, height, width)  # the runs are in Fortran's order
            # cv2 takes rows that follow each other in memory: here columns, so that x and y change places.
            top, left, part_height, part_width = cv2.boundingRect(decoded.T)
            part = decoded[top : top + part_height, left : left + part_width]
            parts.append((np.ascontiguousarray(part), left, top))
        results['gt_masks'] = BoxedMasks(parts, height, width)


@functools.lru_cache(maxsize=256)
def nearest_sources(length: int, new_length: int) -> np.ndarray:
    """The pixel that each of `new_length` takes its value from when OpenCV resizes a row, int32, ascending."""
    return cv2.resize(np.arange(length, dtype=np.int32)[None], (new_length, 1), interpolation=cv2.INTER_NEAREST)[0]
