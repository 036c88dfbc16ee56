"""mmseg's transforms of semantic segmentation: the same pixels for the same random draws, in less time."""

from collections.abc import Callable

import cv2
import numpy as np
from mmcv.transforms.utils import cache_randomness
from mmseg.datasets.transforms import PhotoMetricDistortion, RandomCrop

from ..registry import TRANSFORMS


@TRANSFORMS.register_module()
class CountedRandomCrop(RandomCrop):
    """mmseg's `RandomCrop`, which counts the pixels of each class without sorting them.

    For `cat_max_ratio`, up to ten crops are counted for an image.
    """

    @cache_randomness
    def crop_bbox(self, results: dict) -> tuple[int, int, int, int]:
        """Top, bottom, left and right of the crop in pixels."""
        bbox = self._draw(results['img'].shape)
        labels = results.get('gt_seg_map')
        tries = 10 if self.cat_max_ratio < 1 else 0
        for _ in range(tries):
            counts = counts_of(self.crop(labels, bbox), self.ignore_index)
            if len(counts) > 1 and counts.max() / counts.sum() < self.cat_max_ratio:
                break
            bbox = self._draw(results['img'].shape)
        return bbox

    def _draw(self, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
        top = np.random.randint(0, max(shape[0] - self.crop_size[0], 0) + 1)
        left = np.random.randint(0, max(shape[1] - self.crop_size[1], 0) + 1)
        return top, top + self.crop_size[0], left, left + self.crop_size[1]


def counts_of(labels: np.ndarray, ignored: int) -> np.ndarray:
    """How many pixels each label has that occurs, without the ignored one, in ascending order of the labels."""
    if labels.dtype == np.uint8:
        # OpenCV counts in float32, which is exact up to 16 million pixels of a label.
        counts = cv2.calcHist([labels], [0], None, [256], [0, 256]).ravel().astype(np.int64)
        values = counts.nonzero()[0]
        counts = counts[values]
    else:
        values, counts = np.unique(labels, return_counts=True)
    return counts[values != ignored]


@TRANSFORMS.register_module()
class TablePhotoMetricDistortion(PhotoMetricDistortion):
    """mmseg's `PhotoMetricDistortion`, which computes a table of the 256 values instead of each pixel."""

    def convert(self, img: np.ndarray, alpha: float = 1, beta: float = 0) -> np.ndarray:
        """Multiply by `alpha`, add `beta` and clip to 0 to 255: uint8 of any shape."""
        if img.dtype != np.uint8:
            return super().convert(img, alpha, beta)
        return cv2.LUT(img, super().convert(np.arange(256, dtype=np.uint8), alpha, beta))

    def saturation(self, img: np.ndarray) -> np.ndarray:
        """Change the saturation, in half of the cases."""
        if img.dtype != np.uint8:
            return super().saturation(img)
        if not np.random.randint(2):
            return img
        alpha = np.random.uniform(self.saturation_lower, self.saturation_upper)
        return _changed_in_hsv(img, 1, lambda channel: self.convert(channel, alpha))

    def hue(self, img: np.ndarray) -> np.ndarray:
        """Change the hue, in half of the cases."""
        if img.dtype != np.uint8:
            return super().hue(img)
        if not np.random.randint(2):
            return img
        table = ((np.arange(256) + np.random.randint(-self.hue_delta, self.hue_delta)) % 180).astype(np.uint8)
        return _changed_in_hsv(img, 0, lambda channel: cv2.LUT(channel, table))


def _changed_in_hsv(image: np.ndarray, channel: int, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """An image, B, G, R as uint8, of which one channel in hue, saturation and value is changed."""
    image = cv2.cvtColor(image, cv2.COLOR_BGR2HSV)
    cv2.insertChannel(change(cv2.extractChannel(image, channel)), image, channel)
    return cv2.cvtColor(image, cv2.COLOR_HSV2BGR)
