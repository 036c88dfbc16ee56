"""Maps in colour over an image in grey. All images are RGB, uint8 (H, W, 3)."""

import cv2
import numpy as np
from matplotlib import colormaps

# Dark to bright in every one of its channels of perception: also for colour-blind readers, and in print.
COLORS = colormaps['inferno']
# Share of the colours where heat is lowest and highest; the rest is the image in grey.
HEAT_OPACITY = (0.45, 0.85)


def draw_heat(picture: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """Values in colour over a picture in grey.

    Args:
        picture: The image, of any size.
        heat: Values from 0 to 1, (H, W), that cover the whole image.
    """
    height, width = picture.shape[:2]
    # Enlarged values stay blocks: what is a token or a pixel of the model's input can be seen as such.
    heat = cv2.resize(heat.astype(np.float32), (width, height), interpolation=cv2.INTER_NEAREST)
    grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)[..., None]
    opacity = np.interp(heat, (0, 1), HEAT_OPACITY)[..., None]
    return (opacity * 255 * COLORS(heat)[..., :3] + (1 - opacity) * grey).astype(np.uint8)
