"""Brushes of the miniature images: noise, signed distances and a canvas that knows whose each pixel is.

Everything is computed on whole arrays. A shape is its signed distance (negative inside), so one formula gives
an anti-aliased edge at every size and rotation; a texture is a function of position. Colours are RGB in
[0, 1], float32.
"""

import functools
from dataclasses import dataclass

import cv2
import numpy as np

NOISE_SIZE = 256  # cells along one side of the noise table, after which the noise repeats


@functools.lru_cache(maxsize=1)
def noise_table():
    """Standard normal values of the noise lattice.

    Returns:
        np.ndarray: (NOISE_SIZE, NOISE_SIZE) float32. The same in every process: images differ in where they
        read the table.
    """
    return np.random.default_rng(0).standard_normal((NOISE_SIZE, NOISE_SIZE)).astype(np.float32)


def noise(rng, x, y, octaves=1):
    """Smooth fractal noise with features of about one unit and smaller.

    Args:
        rng (np.random.Generator): Chooses the part of the table that is read.
        x (np.ndarray): Positions, any shape of two dimensions, float.
        y (np.ndarray): Positions, same shape.
        octaves (int): Layers; each has half the feature size and half the height of the one before.

    Returns:
        np.ndarray: float32 of the same shape, mean about 0, about 95 % of the values in [-1, 1].
    """
    total = np.zeros(x.shape, np.float32)
    for octave in range(octaves):
        column, row = [
            (position * 2**octave + offset).astype(np.float32)
            for position, offset in zip((x, y), rng.uniform(0, NOISE_SIZE, 2))
        ]
        # remap takes positions up to 32767 only.
        column -= NOISE_SIZE * np.floor(column / NOISE_SIZE)
        row -= NOISE_SIZE * np.floor(row / NOISE_SIZE)
        layer = cv2.remap(noise_table(), column, row, cv2.INTER_CUBIC, borderMode=cv2.BORDER_WRAP)
        total += layer * 0.5 ** (octave + 1)
    return total


def ramp(value, low, high):
    """Smooth step from 0 at `low` to 1 at `high`; `low` may be the larger of the two."""
    t = np.clip((value - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


def rgb(red, green, blue):
    """Colour from components of 0..255 as a (3,) float32 array in [0, 1]."""
    return np.array([red, green, blue], np.float32) / 255


def mix(first, second, weight):
    """Blend of two colours, (3,) or (H, W, 3), by a scalar or (H, W) weight of the second."""
    weight = np.asarray(weight, np.float32)
    if weight.ndim == 2:
        weight = weight[..., None]
    return first * (1 - weight) + second * weight


@dataclass
class Instance:
    """One drawn object.

    Attributes:
        kind (str): Key of `objects.KINDS`.
        mask (np.ndarray): (H, W) bool, the pixels where it is visible.
        crowd (bool): Whether the mask covers a group that is not told apart.
    """

    kind: str
    mask: np.ndarray
    crowd: bool = False


class Canvas:
    """An image in the making.

    Attributes:
        image (np.ndarray): (H, W, 3) float32 RGB.
        surface (np.ndarray): (H, W) uint8, index of the sky, mountain or ground under the objects.
        instances (list[Instance]): Objects in painting order, each with its visible part.
        light_side (int): -1 when the light comes from the left, 1 from the right.
    """

    def __init__(self, height, width, light_side):
        self.image = np.zeros((height, width, 3), np.float32)
        self.surface = np.zeros((height, width), np.uint8)
        self.instances = []
        self.light_side = light_side
        self.y, self.x = np.mgrid[:height, :width].astype(np.float32) + 0.5

    def fill(self, region, colour, surface):
        """Paint a surface.

        Args:
            region (np.ndarray): (H, W) signed distance in pixels, negative inside.
            colour (np.ndarray): (3,) or (H, W, 3).
            surface (int): Index written where more than half of the pixel is covered.
        """
        coverage = np.clip(0.5 - region, 0, 1)
        self.image = mix(self.image, colour, coverage)
        self.surface[coverage > 0.5] = surface

    def shadow(self, x, y, radius_x, radius_y, strength=0.45):
        """Darken a soft ellipse (pixels) where an object stands."""
        distance = np.hypot((self.x - x) / radius_x, (self.y - y) / radius_y)
        self.image *= 1 - strength * ramp(distance, 1.15, 0.35)[..., None]

    def reflect(self, patch, rng, water, opacity=0.35):
        """Mirror a patch in the surface `water` below its base, broken by ripples; no label changes."""
        height = patch.alpha.shape[0]
        below = slice(patch.base_row, min(patch.base_row + height, self.image.shape[0]))
        y = self.y[below, patch.columns]
        x = self.x[below, patch.columns]
        depth = y - patch.base_row
        # The farther below the object, the more the ripples break its mirror image.
        sway = noise(rng, x / 14, y / 2.2) * (0.6 + depth * 0.06)
        column = (x - 0.5 - patch.columns.start + sway).astype(np.float32)
        row = (patch.base_row - patch.rows.start - depth * 1.25).astype(np.float32)
        colour = cv2.remap(patch.colour, column, row, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT)
        alpha = cv2.remap(patch.alpha, column, row, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT)
        fade = opacity * ramp(depth, height * 0.8, 0) * (self.surface[below, patch.columns] == water)
        fade = fade[..., None]
        view = self.image[below, patch.columns]
        view[...] = view * (1 - alpha[..., None] * fade) + colour * fade

    def stamp(self, patch, kind):
        """Put a finished patch onto the image in front of everything that is there."""
        view = self.image[patch.rows, patch.columns]
        view[...] = view * (1 - patch.alpha[..., None]) + patch.colour
        mask = np.zeros(self.surface.shape, bool)
        mask[patch.rows, patch.columns] = patch.alpha > 0.5
        for instance in self.instances:
            instance.mask &= ~mask
        self.instances.append(Instance(kind, mask))


class Patch:
    """The part of a canvas around one object, in the object's own coordinates.

    The origin is the middle of the object's base, x points right, y up, and one unit is the object's height.
    Distances are in the same unit.

    Args:
        canvas (Canvas): Where the patch will be stamped.
        base_x (float): Column of the origin in pixels.
        base_y (float): Row of the origin in pixels.
        size (float): Height of the object in pixels.
        extent (tuple[float]): Left, bottom, right, top of all that will be painted, in units.
        angle (float): Rotation about the origin in radians, positive to the right.
        mirrored (bool): Whether the object is drawn with left and right exchanged.

    Attributes:
        x (np.ndarray): (h, w) float32, as y.
        pixel (float): Size of one pixel in units.
        colour (np.ndarray): (h, w, 3) float32, premultiplied by alpha.
        alpha (np.ndarray): (h, w) float32.
        sign (int): -1 where the object is drawn mirrored, else 1.
        light (int): -1 when the light comes from the object's left, 1 from its right.
    """

    def __init__(self, canvas, base_x, base_y, size, extent, angle=0.0, mirrored=False):
        height, width = canvas.surface.shape
        left, bottom, right, top = extent
        sign = -1 if mirrored else 1
        corners = np.array([(x, y) for x in (left, right) for y in (bottom, top)]) * size
        corner_x = base_x + sign * corners[:, 0] * np.cos(angle) + corners[:, 1] * np.sin(angle)
        corner_y = base_y + sign * corners[:, 0] * np.sin(angle) - corners[:, 1] * np.cos(angle)
        self.columns = slice(
            int(np.clip(corner_x.min() - 2, 0, width - 1)), int(np.clip(corner_x.max() + 3, 1, width))
        )
        self.rows = slice(
            int(np.clip(corner_y.min() - 2, 0, height - 1)), int(np.clip(corner_y.max() + 3, 1, height))
        )
        self.base_row = int(base_y)
        offset_x = (canvas.x[self.rows, self.columns] - base_x) / size
        offset_y = (canvas.y[self.rows, self.columns] - base_y) / size
        self.x = sign * (offset_x * np.float32(np.cos(angle)) + offset_y * np.float32(np.sin(angle)))
        self.y = offset_x * np.float32(np.sin(angle)) - offset_y * np.float32(np.cos(angle))
        self.pixel = 1 / size
        self.alpha = np.zeros(self.x.shape, np.float32)
        self.colour = np.zeros(self.x.shape + (3,), np.float32)
        self.sign = sign
        self.light = canvas.light_side * sign

    def paint(self, distance, colour, opacity=1.0):
        """Cover the inside of a shape with a colour, (3,) or (h, w, 3)."""
        coverage = (np.clip(0.5 - distance / self.pixel, 0, 1) * opacity)[..., None].astype(np.float32)
        self.colour = self.colour * (1 - coverage) + colour * coverage
        self.alpha = self.alpha * (1 - coverage[..., 0]) + coverage[..., 0]

    def paint_outlined(self, distance, colour, width=0.014, darkness=0.45):
        """As `paint`, with a darker line of the same hue around the shape, at least half a pixel wide."""
        self.paint(distance - max(width, 0.5 * self.pixel), colour * darkness)
        self.paint(distance, colour)

    def detail(self, period):
        """Contrast left for a pattern of this period: fades to 0 before it would alias."""
        return float(np.clip((period / self.pixel - 2) / 3, 0, 1))

    def noise(self, rng, frequency, octaves=2, stretch=1.0):
        """Noise in the object's coordinates; `stretch` > 1 draws the features out vertically."""
        return noise(rng, self.x * frequency, self.y * frequency / stretch, octaves)

    def circle(self, x, y, radius):
        return np.hypot(self.x - x, self.y - y) - radius

    def ellipse(self, x, y, radius_x, radius_y):
        # Exact on the axes and close enough elsewhere for an edge one pixel wide.
        return (np.hypot((self.x - x) / radius_x, (self.y - y) / radius_y) - 1) * min(radius_x, radius_y)

    def box(self, left, bottom, right, top, radius=0.0):
        from_x = np.abs(self.x - (left + right) / 2) - (right - left) / 2 + radius
        from_y = np.abs(self.y - (bottom + top) / 2) - (top - bottom) / 2 + radius
        outside = np.hypot(np.maximum(from_x, 0), np.maximum(from_y, 0))
        return outside + np.minimum(np.maximum(from_x, from_y), 0) - radius

    def segment(self, start, end, radius):
        """Line with round ends; at least one pixel wide, so that thin poles stay visible."""
        radius = max(radius, 0.55 * self.pixel)
        return self._to_segment(start, end) - radius

    def polygon(self, points):
        """Distance to a polygon given as (x, y) pairs in either direction of travel."""
        distance = np.full(self.x.shape, np.inf, np.float32)
        inside = np.zeros(self.x.shape, bool)
        for start, end in zip(points, points[1:] + points[:1]):
            distance = np.minimum(distance, self._to_segment(start, end))
            (x0, y0), (x1, y1) = start, end
            if y0 != y1:
                crossing = x0 + (self.y - y0) * (x1 - x0) / (y1 - y0)
                inside ^= ((self.y >= y0) != (self.y >= y1)) & (self.x < crossing)
        return np.where(inside, -distance, distance)

    def _to_segment(self, start, end):
        (x0, y0), (x1, y1) = start, end
        along_x, along_y = x1 - x0, y1 - y0
        t = ((self.x - x0) * along_x + (self.y - y0) * along_y) / (along_x**2 + along_y**2)
        t = np.clip(t, 0, 1)
        return np.hypot(self.x - x0 - t * along_x, self.y - y0 - t * along_y)
