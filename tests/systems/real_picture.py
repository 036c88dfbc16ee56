"""The photograph of the documentation, as a network gets it."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

PHOTOGRAPH = Path(__file__).parents[2] / 'docs' / 'chelsea.jpg'


def real_picture(size: int) -> torch.Tensor:
    """The photograph and its mirror image, normalised channel by channel: (2, 3, size, size)."""
    with Image.open(PHOTOGRAPH) as file:
        pixels = torch.from_numpy(np.asarray(file.convert('RGB').resize((size, size)), dtype=np.float32))
    image = (pixels - pixels.mean((0, 1))) / pixels.std((0, 1))
    return torch.stack([image, image.flip(1)]).permute(0, 3, 1, 2).contiguous()
