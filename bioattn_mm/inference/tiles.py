"""Small objects in large images: detection in overlapping tiles, whose detections are merged.

The way of SAHI (Akyon et al., ICIP 2022): each tile is predicted on at its own resolution, and the whole image once,
for objects that are larger than a tile.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from mmengine.structures import InstanceData
from pycocotools import mask as coco_mask
from torch import Tensor

from ..errors import InputError
from .run_lengths import decode_mask

# The border of a tile cuts objects. A detection at such a border is of one object with another from this part of the
# smaller one on that the other covers.
COVERED = 0.5
# Detections of whole objects are of one from this intersection over union on.
OVERLAP = 0.5
# A detection is at a border of its part up to this share of the part's side.
BORDER = 0.01


@dataclass(frozen=True)
class Tiling:
    """How images are cut into tiles.

    Attributes:
        side: Height and width of a tile in pixels.
        overlap: Part of a tile that the next one covers, too: as much as the largest of the small objects.

    Raises:
        InputError: There are no such tiles.
    """

    side: int
    overlap: float = 0.2

    def __post_init__(self) -> None:
        if self.side < 32:
            raise InputError(f'a tile must have a side of 32 pixels or more, got {self.side}')
        if not 0 <= self.overlap < 1:
            raise InputError(f'the overlap of tiles must be a part from 0 to below 1, got {self.overlap}')

    def windows(self, height: int, width: int) -> list[tuple[slice, slice]]:
        """Rows and columns of the tiles of an image, from top to bottom; all have the same size.

        An image that is smaller than a tile along one axis is not cut along it.
        """
        step = max(1, round(self.side * (1 - self.overlap)))
        starts = []
        for length in (height, width):
            last = max(length - self.side, 0)
            starts.append([*range(0, last, step), last])
        return [
            (slice(top, min(top + self.side, height)), slice(left, min(left + self.side, width)))
            for top in starts[0]
            for left in starts[1]
        ]


def merge(
    parts: Sequence[InstanceData],
    windows: Sequence[tuple[slice, slice]],
    sizes: Sequence[tuple[int, int]],
    size: tuple[int, int],
) -> InstanceData:
    """Merge the detections of parts of an image into those of the image.

    In the order of their scores, a detection takes in one of its class from each other part: the one that overlaps
    most with it, if their intersection over union is at least `OVERLAP` or, where the border of a tile cuts one of
    them, if at least `COVERED` of the smaller box is in the other. Its box becomes the union of the boxes, its mask
    that of the masks. Detections of one part stay apart, because the detector has told them apart.

    Args:
        parts: `bboxes` (N, 4) x1, y1, x2, y2 in pixels of the part, `scores`, `labels`, and maybe `masks`, COCO's run
            lengths.
        windows: Rows and columns of each part in the image.
        sizes: (height, width) in which each part was predicted on; another one than that of its window if the image
            was reduced for it.
        size: (height, width) of the image.

    Returns:
        The same in pixels of the image, by falling score.
    """
    boxes, cuts = [], []
    for part, (rows, columns), (height, width) in zip(parts, windows, sizes):
        scale = [(columns.stop - columns.start) / width, (rows.stop - rows.start) / height] * 2
        boxes.append(
            part.bboxes * part.bboxes.new_tensor(scale) + part.bboxes.new_tensor([columns.start, rows.start] * 2)
        )
        cuts.append(_is_cut(boxes[-1], rows, columns, size))
    boxes, cuts = torch.cat(boxes), torch.cat(cuts)
    scores, labels = (torch.cat([part[name] for part in parts]) for name in ('scores', 'labels'))
    owners = torch.cat([part.labels.new_full(part.labels.shape, index) for index, part in enumerate(parts)])
    groups = _groups(boxes, scores, labels, owners, cuts)
    first = [group[0] for group in groups]
    merged = InstanceData(scores=scores[first], labels=labels[first])
    merged.bboxes = boxes.new_zeros(len(groups), 4)
    for index, group in enumerate(groups):
        merged.bboxes[index, :2] = boxes[group, :2].amin(0)
        merged.bboxes[index, 2:] = boxes[group, 2:].amax(0)
    if 'masks' in parts[0]:
        masks = [(mask, window) for part, window in zip(parts, windows) for mask in part.masks]
        merged.masks = [coco_mask.merge([placed(*masks[member], *size) for member in group]) for group in groups]
    return merged


def placed(mask: dict, window: tuple[slice, slice], height: int, width: int) -> dict:
    """A mask of a part of an image as one of the image, both as COCO's run lengths.

    Args:
        mask: Of the part, or of the part in another size.
        window: Rows and columns of the part in the image.
        height: Height of the image in pixels.
        width: Width of the image in pixels.
    """
    rows, columns = window
    # COCO's run lengths go from top to bottom through one column after the other.
    edges = np.diff(np.pad(decode_mask(mask).T.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    lengths, old = (rows.stop - rows.start, columns.stop - columns.start), mask['size']
    # The column of the mask that each column of the window is nearest to, and where each row of the mask begins.
    nearest = ((np.arange(lengths[1]) + 0.5) * (old[1] / lengths[1])).astype(np.int64)
    begins = np.ceil(np.arange(old[0] + 1) * (lengths[0] / old[0]) - 0.5).astype(np.int64)
    found = [
        (columns.start + index) * height + rows.start + begins[np.flatnonzero(edges[column])]
        for index, column in enumerate(nearest)
    ]
    counts = np.diff(np.concatenate(found), prepend=0, append=height * width)
    return coco_mask.frPyObjects(dict(size=[height, width], counts=counts.tolist()), height, width)


def _is_cut(boxes: Tensor, rows: slice, columns: slice, size: tuple[int, int]) -> Tensor:
    """Whether boxes x1, y1, x2, y2 in an image of a size (height, width) reach a border of a window inside of it."""
    cut = torch.zeros(len(boxes), dtype=torch.bool)
    for axis, (window, length) in enumerate(((columns, size[1]), (rows, size[0]))):
        margin = max(1.0, BORDER * (window.stop - window.start))
        if window.start > 0:
            cut |= (boxes[:, axis] <= window.start + margin).cpu()
        if window.stop < length:
            cut |= (boxes[:, axis + 2] >= window.stop - margin).cpu()
    return cut.to(boxes.device)


def _groups(boxes: Tensor, scores: Tensor, labels: Tensor, owners: Tensor, cuts: Tensor) -> list[list[int]]:
    """Indices of the detections of one object, one at most of each part, the one with the highest score first."""
    areas = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(1)
    free = torch.ones_like(labels, dtype=torch.bool)
    groups = []
    for index in scores.argsort(descending=True, stable=True).tolist():
        if not free[index]:
            continue
        free[index] = False
        others = torch.nonzero(free & (labels == labels[index]) & (owners != owners[index]))[:, 0]
        low = torch.maximum(boxes[others, :2], boxes[index, :2])
        high = torch.minimum(boxes[others, 2:], boxes[index, 2:])
        common = (high - low).clamp(min=0).prod(1)
        smaller = torch.minimum(areas[others], areas[index])
        union = areas[others] + areas[index] - common
        is_cut = cuts[others] | cuts[index]
        needed = torch.where(is_cut, COVERED * smaller, OVERLAP * union).clamp(min=torch.finfo(areas.dtype).tiny)
        best: dict[int, int] = {}  # by part
        for place in common.argsort(descending=True, stable=True).tolist():
            if common[place] >= needed[place]:
                best.setdefault(int(owners[others[place]]), int(others[place]))
        free[list(best.values())] = False
        groups.append([index, *best.values()])
    return groups
