"""What drawings of several tools share: panels in lines, maps in colour over an image, outlines."""

import math

import cv2
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from matplotlib.patheffects import AbstractPathEffect, Normal, Stroke

# Dark to bright in every one of its channels of perception: also for colour-blind readers, and in print.
COLORS = colormaps['inferno']
# Share of the colours where heat is lowest and highest; the rest is the image in grey.
HEAT_OPACITY = (0.45, 0.85)


def panels(number: int, columns: int, width: float, height: float, margin: float = 0.3) -> tuple[Figure, list[Axes]]:
    """A figure of panels, at most `columns` in a line, and their axes, line by line.

    Width and height of a panel are in inches, as is the margin, which is added to the height.
    """
    columns = min(columns, number)
    lines = math.ceil(number / columns)
    figure = Figure(figsize=(width * columns, height * lines + margin), layout='constrained')
    axes = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axis in axes:
        axis.tick_params(labelsize=7)
    for axis in axes[number:]:
        axis.axis('off')
    return figure, axes[:number]


def draw_heat(picture: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """Values from 0 to 1 in colour over a picture in grey, RGB, uint8 (H, W, 3), which they cover at any size."""
    height, width = picture.shape[:2]
    # Enlarged values stay blocks: what is a token or a pixel of the model's input can be seen as such.
    heat = cv2.resize(heat.astype(np.float32), (width, height), interpolation=cv2.INTER_NEAREST)
    grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)[..., None]
    opacity = np.interp(heat, (0, 1), HEAT_OPACITY)[..., None]
    return (opacity * 255 * COLORS(heat)[..., :3] + (1 - opacity) * grey).astype(np.uint8)


def outlined(width: float) -> list[AbstractPathEffect]:
    """Effects of a line that is seen on every ground: a black one, so many points wide, lies below it."""
    return [Stroke(linewidth=width, foreground='black'), Normal()]


def draw_ellipses(axis: Axes, middle: tuple[float, float], fit: dict[str, float]) -> None:
    """Outline what `maps.fit_gaussian` gave at one and two sigma, if anything.

    `middle` has x and y of the middle of the map on the axis.
    """
    if np.isnan(fit['r_squared']):
        return
    center = middle[0] + fit['center_x'], middle[1] + fit['center_y']
    for factor, style in ((2, '-'), (4, '--')):
        size = factor * fit['sigma_x'], factor * fit['sigma_y']
        outline = dict(fill=False, color='white', linestyle=style, path_effects=outlined(2.5))
        axis.add_patch(Ellipse(center, *size, **outline))
