"""Corruption of test images, to measure the robustness of a model."""

import contextlib
import zlib
from collections.abc import Iterator
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

    The seed depends only on the file name of the image and on the corruption: every model, run and severity gets the
    same random numbers.

    Required keys: `img`, BGR, uint8 (H, W, 3), and `img_path`. Modified key: `img`.

    Args:
        corruption: Name of the corruption, such as 'gaussian_noise' or 'fog'.
        severity: 1 to 5.

    Raises:
        InputError: There is no such corruption or severity; in `transform`: the image is of another kind, or a side
            of it is shorter than 32 pixels.
    """

    def __init__(self, corruption: str, severity: int) -> None:
        # Imported here because it imports numba, which takes seconds.
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
        if image.shape[2:] != (3,) or image.dtype != np.uint8:
            raise InputError(
                f'corruptions are for colour images in 8 bits, (height, width, 3) of uint8: {path} was loaded as '
                f'{image.shape} of {image.dtype}'
            )
        if min(image.shape[:2]) < MIN_SIZE:
            raise InputError(
                f'corruptions need images of at least {MIN_SIZE} pixels a side: {path} is {image.shape[1]} x '
                f'{image.shape[0]}'
            )
        seed = zlib.crc32(f'{path.name} {self.corruption}'.encode('utf-8', 'surrogateescape'))
        options = dict(seed=seed) if self.corruption in SEEDED else {}
        with numpy_seed(seed):
            # imagecorruptions takes and returns RGB.
            image = self.corrupt(image[..., ::-1], self.severity, self.corruption, **options)
        results['img'] = np.ascontiguousarray(image[..., ::-1])
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}(corruption={self.corruption!r}, severity={self.severity})'


@contextlib.contextmanager
def numpy_seed(seed: int) -> Iterator[None]:
    """Seed numpy's global generator, and restore its state afterwards."""
    state = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(state)
