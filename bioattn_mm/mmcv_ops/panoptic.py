"""What mmdet imports of `panopticapi`: segments as colours, and the sums that panoptic quality is computed from.

mmdet's dataset, transforms and metric of panoptic segmentation need COCO's package of that name, which is not on
PyPI. mmdet matches the segments itself; what it takes from the package is in this file.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

VOID = 0  # ID of pixels that belong to no segment
OFFSET = 256**3  # number of IDs


def rgb2id(color: np.ndarray | Sequence[int]) -> np.ndarray | int:
    """The ID of a segment, R + 256 G + 256^2 B: of (H, W, 3) int32 (H, W), of one colour an int."""
    if isinstance(color, np.ndarray) and color.ndim == 3:
        return color.astype(np.int32) @ np.array([1, 256, 256**2], np.int32)
    red, green, blue = (int(value) for value in color)
    return red + 256 * green + 256**2 * blue


def id2rgb(id_map: np.ndarray | int) -> np.ndarray | list[int]:
    """The colour of a segment, the inverse of `rgb2id`: of (H, W) uint8 (H, W, 3), of an int R, G and B."""
    if isinstance(id_map, np.ndarray):
        return np.stack([id_map >> shift & 255 for shift in (0, 8, 16)], axis=-1).astype(np.uint8)
    return [int(id_map) >> shift & 255 for shift in (0, 8, 16)]


@dataclass
class PQStatCat:
    """What panoptic quality needs of one category: sum of the IoU of matched segments, numbers of segments."""

    iou: float = 0.0
    tp: int = 0
    fp: int = 0
    fn: int = 0

    def __iadd__(self, other: 'PQStatCat') -> 'PQStatCat':
        self.iou += other.iou
        self.tp += other.tp
        self.fp += other.fp
        self.fn += other.fn
        return self


class PQStat:
    """What panoptic quality needs of every category: `stat[category_id]` is a `PQStatCat`, and `+=` adds images."""

    def __init__(self) -> None:
        self.pq_per_cat = defaultdict(PQStatCat)

    def __getitem__(self, category_id: int) -> PQStatCat:
        return self.pq_per_cat[category_id]

    def __iadd__(self, other: 'PQStat') -> 'PQStat':
        for category_id, stat in other.pq_per_cat.items():
            self.pq_per_cat[category_id] += stat
        return self

    def pq_average(self, categories: dict[int, dict], isthing: bool | None) -> tuple[dict, dict[int, dict]]:
        """Panoptic, segmentation and recognition quality: PQ = SQ * RQ of a category (Kirillov et al., CVPR 2019).

        Args:
            categories: Entries of 'categories' in the annotation file by their id.
            isthing: Whether to take things or stuff; None takes both.

        Returns:
            The mean 'pq', 'sq' and 'rq' over the categories that occur in the ground truth or the predictions, each 0
            to 1, and their number 'n'; without any, NaN. And 'pq', 'sq' and 'rq' of every category.
        """
        per_category, occurring = {}, []
        for category_id, category in categories.items():
            if isthing is not None and isthing != bool(category['isthing']):
                continue
            stat = self[category_id]
            number = stat.tp + 0.5 * stat.fp + 0.5 * stat.fn
            qualities = dict(
                pq=stat.iou / number if number else 0.0,
                sq=stat.iou / stat.tp if stat.tp else 0.0,
                rq=stat.tp / number if number else 0.0,
            )
            per_category[category_id] = qualities
            if number:
                occurring.append(qualities)
        means = {
            key: sum(qualities[key] for qualities in occurring) / len(occurring) if occurring else math.nan
            for key in ('pq', 'sq', 'rq')
        }
        return dict(**means, n=len(occurring)), per_category
