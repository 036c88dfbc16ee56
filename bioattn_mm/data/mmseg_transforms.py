"""mmseg's transforms: label maps of more than 8 bits refused, and augmentation with the same pixels in less time."""

import cv2
import mmcv
import numpy as np
from mmcv.transforms.utils import cache_randomness
from mmengine import fileio
from mmseg.datasets.transforms import LoadAnnotations, PhotoMetricDistortion, RandomCrop

from ..registry import TRANSFORMS
from .checks import WHAT_TO_DO, BadDataError
from .formats.class_files import IGNORED
from .formats.label_maps import count_values, without_channels, wrong_value


@TRANSFORMS.register_module()
class CountedRandomCrop(RandomCrop):
    """mmseg's `RandomCrop`, which counts the pixels of each class, in up to ten crops, without sorting them."""

    @cache_randomness
    def crop_bbox(self, results: dict) -> tuple[int, int, int, int]:
        bbox = self._draw(results['img'].shape)
        for _ in range(10 if self.cat_max_ratio < 1 else 0):
            values, counts = count_values(self.crop(results['gt_seg_map'], bbox))
            counts = counts[values != self.ignore_index]
            if len(counts) > 1 and counts.max() / counts.sum() < self.cat_max_ratio:
                break
            bbox = self._draw(results['img'].shape)
        return bbox

    def _draw(self, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
        top = np.random.randint(0, max(shape[0] - self.crop_size[0], 0) + 1)
        left = np.random.randint(0, max(shape[1] - self.crop_size[1], 0) + 1)
        return top, top + self.crop_size[0], left, left + self.crop_size[1]


@TRANSFORMS.register_module()
class TablePhotoMetricDistortion(PhotoMetricDistortion):
    """mmseg's `PhotoMetricDistortion`, which computes a table of the 256 values instead of each pixel."""

    def convert(self, img: np.ndarray, alpha: float = 1, beta: float = 0) -> np.ndarray:
        if img.dtype != np.uint8:
            return super().convert(img, alpha, beta)
        return cv2.LUT(img, super().convert(np.arange(256, dtype=np.uint8), alpha, beta))

    def hue(self, img: np.ndarray) -> np.ndarray:
        if img.dtype != np.uint8:
            return super().hue(img)
        if not np.random.randint(2):
            return img
        table = ((np.arange(256) + np.random.randint(-self.hue_delta, self.hue_delta)) % 180).astype(np.uint8)
        image = cv2.cvtColor(img, cv2.COLOR_BGR2HSV)
        cv2.insertChannel(cv2.LUT(cv2.extractChannel(image, 0), table), image, 0)
        return cv2.cvtColor(image, cv2.COLOR_HSV2BGR)


class WideLoadAnnotations(LoadAnnotations):
    """mmseg's `LoadAnnotations`, which keeps shapes, and refuses values beyond 8 bits: mmseg takes 256 for 0."""

    def _load_seg_map(self, results: dict) -> None:
        path = results['seg_map_path']
        content = fileio.get(path, backend_args=self.backend_args)
        labels = mmcv.imfrombytes(content, flag='unchanged', backend=self.imdecode_backend)
        if labels.ndim == 3:
            labels = labels[..., :3] if results.get('label_colours') else without_channels(labels)
        if labels.dtype.kind not in 'bui':
            raise BadDataError(f'the label map {path} has values of {labels.dtype}, expected integers; {WHAT_TO_DO}')
        reduce_zero_label = results['reduce_zero_label']
        if labels.dtype.itemsize > 1:
            beyond = labels[(labels < 0) | (labels > IGNORED)]
            if beyond.size:
                reason = wrong_value(int(beyond[0]), results.get('num_classes'), int(bool(reduce_zero_label)))
                raise BadDataError(f'the label map {path} {reason}; {WHAT_TO_DO}')
        labels = labels.astype(np.uint8)
        table = np.arange(256, dtype=np.uint8)
        if reduce_zero_label:
            table[1:IGNORED] -= 1
            table[0] = IGNORED
        before = table.copy()
        for old, new in (results.get('label_map') or {}).items():
            table[before == old] = new
        results['gt_seg_map'] = table[labels] if labels.ndim == 2 else labels  # colours are no labels yet
        results['seg_fields'].append('gt_seg_map')
