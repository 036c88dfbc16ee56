"""What models predict for an image, as NumPy arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

INSTANCE_OFFSET = 1000  # mmdet's offset of the IDs of panoptic segments


@dataclass
class Segmentation:
    """The prediction of a segmentor for an image.

    Attributes:
        labels: Index of the class in every pixel of the image, int64 (H, W).
        logits: Of every class in every pixel, float32 (classes, H, W); None unless asked for. Of a model with a
            single channel its sigmoid, as in mmseg.
    """

    labels: np.ndarray
    logits: np.ndarray | None = None


@dataclass
class Detections:
    """The prediction of a detector for an image.

    Attributes:
        boxes: x1, y1, x2, y2 in pixels of the image, float32 (N, 4).
        scores: float32 (N,).
        labels: Indices of the classes, int64 (N,).
        masks: bool (N, H, W); None of a model without masks.
    """

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: np.ndarray | None = None

    def keep(self, kept: np.ndarray) -> 'Detections':
        """Those of a bool (N,)."""
        masks = None if self.masks is None else self.masks[kept]
        return Detections(self.boxes[kept], self.scores[kept], self.labels[kept], masks)

    def best_first(self) -> list[int]:
        """Their indices by falling score."""
        return np.argsort(-self.scores, kind='stable').tolist()


@dataclass
class Panoptic:
    """The prediction of a panoptic model for an image.

    Attributes:
        segments: Class + `INSTANCE_OFFSET` * number of the object in every pixel, int (H, W); the number of classes
            where no segment is.
    """

    segments: np.ndarray


@dataclass
class Classification:
    """The prediction of a classifier for an image.

    Attributes:
        scores: Probabilities of the classes, float32 (classes,).
    """

    scores: np.ndarray

    @property
    def label(self) -> int:
        """Index of the most probable class."""
        return int(self.scores.argmax())


Result = Segmentation | Detections | Panoptic | Classification


def resized_labels(labels: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """A label map or mask (H, W) of any dtype in another size (height, width), by the nearest pixels."""
    if labels.shape == tuple(size):
        return labels
    rows, columns = (((np.arange(new) + 0.5) * (old / new)).astype(np.int64) for old, new in zip(labels.shape, size))
    return labels[rows[:, None], columns]
