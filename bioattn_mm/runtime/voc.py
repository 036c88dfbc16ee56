"""The colours of Pascal VOC's label maps, whose pixels are indices of classes or of objects."""

import numpy as np

BACKGROUND, BORDER = 0, 255  # indices of pixels of no object, and of those that do not count


def voc_palette() -> np.ndarray:
    """R, G and B of the 256 indices, uint8 (256, 3): each colour stands for one index.

    The bits of an index, the lowest first, go to R, G and B in turn, to the highest bit of each first.
    """
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder='little')
    return np.stack([np.packbits(bits[:, channel::3], axis=1)[:, 0] for channel in range(3)], axis=1)
