"""WebP images that EXIF data turn, for every transform of mmcv, mmdet, mmseg and mmpretrain that loads an image.

OpenCV turns images in the other formats. Without this a model would be trained on such images as they lie in their
files, and run on them as they are shown.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import TYPE_CHECKING

from .after_import import AfterImport

if TYPE_CHECKING:
    import numpy as np


def turn_webp(module: ModuleType) -> None:
    """Let `mmcv.imfrombytes` turn WebP images as their EXIF data say."""
    decode = module.imfrombytes

    @functools.wraps(decode)
    def imfrombytes(content: bytes, flag: str = 'color', *args: object, **kwargs: object) -> np.ndarray:
        from ..runtime.images import turned_webp  # here: OpenCV takes a while to import

        image = turned_webp(content) if flag == 'color' else None
        if image is None:
            return decode(content, flag, *args, **kwargs)
        channel_order = args[0] if args else kwargs.get('channel_order', 'bgr')
        return image if channel_order == 'bgr' else image[..., ::-1].copy()

    if not hasattr(decode, '__wrapped__'):
        module.imfrombytes = imfrombytes


def install() -> None:
    """Turn WebP images as soon as mmcv is imported; a second call does nothing."""
    AfterImport('mmcv.image.io', turn_webp).install()
