"""What the miniature scenes are drawn with: softly lit polygons, painted surfaces and noise.

Colours are RGB in [0, 1], float32. Positions are (x, y) in pixels from the upper left corner.
"""

from dataclasses import dataclass

import cv2
import numpy as np

SUBPIXEL_BITS = 4  # OpenCV takes coordinates as fixed-point numbers


@dataclass
class Instance:
    """One drawn object.

    Attributes:
        kind (str): Key of `objects.KINDS`.
        mask (np.ndarray): (H, W) bool, the pixels where it is visible.
        crowd (bool): Whether the mask covers a group of objects, which COCO annotates as one crowd.
    """

    kind: str
    mask: np.ndarray
    crowd: bool = False


class Scene:
    """An image with the label of every pixel.

    Args:
        name (str): Key of `scenes.SCENES`.
        height (int): In pixels.
        width (int): In pixels.
        horizon (int): Row where the sky ends.
        haze (np.ndarray): (3,), colour of the sky at the horizon, which tints whatever is far.
        light_side (int): -1 where the light comes from the left, 1 from the right.

    Attributes:
        image (np.ndarray): (H, W, 3), float32; uint8 when `scenes.draw_scene` returns it.
        surface (np.ndarray): (H, W) uint8, index into `scenes.SURFACES` of what lies below the objects.
        instances (list[Instance]): The objects, each in front of those before it.
        x (np.ndarray): (1, W) float32, columns.
        y (np.ndarray): (H, 1) float32, rows.
        nearness (np.ndarray): (H, 1) float32, 0 from the horizon up, 1 at the lower edge.
    """

    def __init__(self, name: str, height: int, width: int, horizon: int, haze: np.ndarray, light_side: int) -> None:
        self.name, self.horizon, self.haze, self.light_side = name, horizon, haze, light_side
        self.image = np.zeros((height, width, 3), np.float32)
        self.surface = np.zeros((height, width), np.uint8)
        self.instances = []
        self.y, self.x = (positions.astype(np.float32) for positions in np.ogrid[:height, :width])
        self.nearness = np.clip((self.y - horizon) / (height - horizon), 0, 1)

    def fill(self, surface: int, colour: np.ndarray, alpha: np.ndarray) -> None:
        """Paint a surface, (3,) or (H, W, 3), where `alpha`, (H, W) in [0, 1], is above 0."""
        self.image = mix(self.image, colour, alpha)
        self.surface[alpha > 0.5] = surface

    def draw(self, points: np.ndarray, colour: np.ndarray, opacity: float = 1.0, blur: float = 0.0) -> np.ndarray:
        """Draw a polygon with a gradient, brighter above and on the side of the light.

        Args:
            points: (N, 2).
            colour: (3,).
            opacity: 0 to 1.
            blur: Standard deviation of the blur of its edge in pixels.

        Returns:
            np.ndarray: (H, W) bool, whether it covers more than half of the pixel.
        """
        covered = np.zeros(self.surface.shape, bool)
        low, high = points.min(0), points.max(0)
        margin = 3 * blur + 2
        left, top = np.clip(low - margin, 0, covered.shape[::-1]).astype(int)
        right, bottom = np.clip(high + margin, 0, covered.shape[::-1]).astype(int)
        if left == right or top == bottom:
            return covered
        area = slice(top, bottom), slice(left, right)
        alpha = np.zeros((bottom - top, right - left), np.uint8)
        corners = np.round((points - (left, top)) * 2**SUBPIXEL_BITS).astype(np.int32)
        cv2.fillPoly(alpha, [corners], 255, cv2.LINE_AA, SUBPIXEL_BITS)
        if blur:
            alpha = cv2.GaussianBlur(alpha, (0, 0), blur)
        # Both run from -1 to 1 over the polygon.
        across = (2 * self.x[:, left:right] - low[0] - high[0]) / (high[0] - low[0] + 2)
        down = (2 * self.y[top:bottom] - low[1] - high[1]) / (high[1] - low[1] + 2)
        brightness = 1 + 0.16 * (self.light_side * across - down)
        self.image[area] = mix(self.image[area], colour * brightness[..., None], opacity / 255 * alpha)
        covered[area] = alpha > 127
        return covered


def rgb(code: str) -> np.ndarray:
    """Colour, (3,), of a hexadecimal code."""
    return np.array(list(bytes.fromhex(code)), np.float32) / 255


def mix(first: np.ndarray, second: np.ndarray, weight: np.ndarray | float) -> np.ndarray:
    """Blend two colours, each (3,) or (H, W, 3), by the weight of the second, a number or (H, W)."""
    weight = np.asarray(weight, np.float32)[..., None]
    return first * (1 - weight) + second * weight


def ramp(value: np.ndarray, low: float, high: float) -> np.ndarray:
    """Smooth step from 0 at `low` to 1 at `high`, which may be the smaller of the two."""
    t = np.clip((value - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


def noise(rng: np.random.Generator, height: int, width: int, rows: float, columns: float) -> np.ndarray:
    """Smooth noise, (height, width), of mean 0 and mostly in [-1, 1].

    It has four layers, each of half the height and half the feature size of the one before; `rows` and `columns` are
    the features of the first from top to bottom and from left to right.
    """
    total = np.zeros((height, width), np.float32)
    for layer in range(4):
        grid = rng.standard_normal((int(rows * 2**layer) + 2, int(columns * 2**layer) + 2), np.float32)
        total += cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC) * 0.5 ** (layer + 1)
    return total
