"""Corruption of test images, to measure the robustness of a model."""

import zlib
from pathlib import Path

import numpy as np
from mmcv.transforms import BaseTransform

from ..errors import InputError
from ..registry import TRANSFORMS

MIN_SIZE = 32  # pixels per side, required by `imagecorruptions`
SEVERITIES = (1, 2, 3, 4, 5)
# Corruptions that take a seed as argument; the others draw from numpy's global generator.
SEEDED = ('glass_blur', 'impulse_noise')


@TRANSFORMS.register_module()
class Corrupt(BaseTransform):
    """Corrupt an image as ImageNet-C does (Hendrycks and Dietterich, ICLR 2019), with the package `imagecorruptions`.

    The seed depends on the file name of the image and the corruption alone. `img` is BGR, uint8 (H, W, 3), of 32
    pixels a side at least.

    Args:
        corruption: Name of the corruption, such as 'gaussian_noise' or 'fog'.
        severity: 1 to 5.
    """

    def __init__(self, corruption: str, severity: int) -> None:
        from imagecorruptions import corrupt, get_corruption_names  # numba takes seconds to import

        names = get_corruption_names('all')
        if corruption not in names:
            raise InputError(f'corruption must be one of {", ".join(names)}, got {corruption!r}')
        if severity not in SEVERITIES:
            raise InputError(f'severity must be 1 to 5, got {severity}')
        self.corrupt, self.corruption, self.severity = corrupt, corruption, severity

    def transform(self, results: dict) -> dict:
        image, path = results['img'], Path(results['img_path'])
        if image.shape[2:] != (3,) or image.dtype != np.uint8 or min(image.shape[:2]) < MIN_SIZE:
            raise InputError(
                f'corruptions are for colour images in 8 bits, (height, width, 3) of uint8, of at least {MIN_SIZE} '
                f'pixels a side: {path} was loaded as {image.shape} of {image.dtype}'
            )
        seed = zlib.crc32(f'{path.name} {self.corruption}'.encode('utf-8', 'surrogateescape'))
        options = dict(seed=seed) if self.corruption in SEEDED else {}
        state = np.random.get_state()
        np.random.seed(seed)
        try:  # imagecorruptions takes and returns RGB
            image = self.corrupt(image[..., ::-1], self.severity, self.corruption, **options)
        finally:
            np.random.set_state(state)
        results['img'] = np.ascontiguousarray(image[..., ::-1])
        return results
