"""Corrupted images, for testing how robust a model is."""

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from mmcv.transforms import BaseTransform

from ..errors import InputError
from ..registry import TRANSFORMS

# The package's limit, in pixels.
MIN_SIZE = 32
SEVERITIES = (1, 2, 3, 4, 5)
# Corruptions that draw from a generator of their own, which `seed` starts; the others draw from numpy's global one.
SEEDED = ('glass_blur', 'impulse_noise')


@TRANSFORMS.register_module()
class Corrupt(BaseTransform):
    """One of the corruptions of ImageNet-C (Hendrycks and Dietterich, ICLR 2019), by the package `imagecorruptions`.

    What is random in a corruption depends on the name of the image's file and on the corruption alone, so that
    every model and every run gets the same images; severities of an image share it.

    Required keys: `img`, BGR, uint8 (H, W, 3), and `img_path`. Modified key: `img`.

    Args:
        corruption: Its name, such as 'gaussian_noise' or 'fog'.
        severity: 1 to 5.

    Raises:
        InputError: There is no such corruption or severity; in `transform`, an image has less than 32 pixels a side.
    """

    def __init__(self, corruption: str, severity: int) -> None:
        # Imports numba: seconds that only those wait who corrupt images.
        from imagecorruptions import corrupt, get_corruption_names

        names = get_corruption_names('all')
        if corruption not in names:
            raise InputError(f'corruption must be one of {", ".join(names)}, got {corruption!r}')
        if severity not in SEVERITIES:
            raise InputError(f'severity must be 1 to 5, got {severity}')
        self.corrupt = corrupt
        self.corruption = corruption
        self.severity = severity

    def transform(self, results: dict) -> dict:
        image, path = results['img'], Path(results['img_path'])
        if min(image.shape[:2]) < MIN_SIZE:
            raise InputError(
                f'corruptions take images of at least {MIN_SIZE} pixels a side: {path} is {image.shape[1]} x '
                f'{image.shape[0]}'
            )
        seed = zlib.crc32(f'{path.name} {self.corruption}'.encode())
        options = dict(seed=seed) if self.corruption in SEEDED else {}
        with numpy_seed(seed):
            # The package's images are RGB.
            image = self.corrupt(image[..., ::-1], self.severity, self.corruption, **options)
        results['img'] = np.ascontiguousarray(image[..., ::-1])
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}(corruption={self.corruption!r}, severity={self.severity})'


@contextlib.contextmanager
def numpy_seed(seed: int) -> Iterator[None]:
    """Seed numpy's global generator, and put back afterwards what it was."""
    state = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(state)
