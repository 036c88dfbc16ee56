"""Draws the miniature scenes: a sky, often mountains, a ground and objects on it, for ImageNet a single one.

Colours are RGB in [0, 1], float32. Positions are (x, y) in pixels from the upper left corner.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from .objects import KINDS, OPACITY, PALETTES, oval

SURFACES = ('sky', 'mountain', 'grass', 'sea', 'sand', 'field', 'road')  # ADE20K's names
# Colours to choose from, features of the texture (rows, columns) and its contrast.
GROUNDS = {
    'grass': ('6aa544 7fb04e 5c9a50 8fae54', (26, 110), 0.24),
    'sea': ('2479a0 2b8ea3 2f6d9c', (34, 6), 0.26),
    'sand': ('f0dcae ead0a0 f3e2c2', (90, 80), 0.07),
    'field': ('e6b845 dcc23e b07a50', (40, 40), 0.16),
    'road': ('6f7178 63656c', (90, 90), 0.12),
}
# The ground at the horizon and what may lie in front of it; and how likely each scene is.
SCENES = {'pasture': ('grass',), 'farm': ('grass', 'field'), 'coast': ('sea', 'sand'), 'street': ('grass', 'road')}
SCENE_CHANCES = dict(pasture=0.15, farm=0.2, coast=0.3, street=0.35)
# Colours of the sky's top, of the horizon and of the light: twice fair, overcast, evening, morning.
WEATHER = (*['4a90d0 cfe6f2 fffdf6'] * 2, '8fa6bc e3e8ea eef1f5', '6a78b0 fbcf9f ffe9cf', '7db4dc fbe9d6 fff7ea')
CROWD_CHANCE = 0.25
MIN_SIZE = 11  # height of an object in pixels
MAX_OVERLAP = 0.35  # the share of the smaller one of two objects' boxes
SUBPIXEL_BITS = 4  # OpenCV takes coordinates as fixed-point numbers


@dataclass
class Instance:
    """One drawn object."""

    kind: str  # key of `objects.KINDS`
    mask: np.ndarray  # bool (H, W), where it is visible
    crowd: bool = False  # whether it is a group of objects, which COCO annotates as one crowd


class Scene:
    """An image with the label of every pixel.

    Args:
        name: Key of `SCENES`.
        height, width: In pixels.
        horizon: Row where the sky ends.
        haze: (3,), colour of the sky at the horizon, which tints whatever is far.
        light_side: -1 where the light comes from the left, 1 from the right.
    """

    def __init__(self, name: str, height: int, width: int, horizon: int, haze: np.ndarray, light_side: int) -> None:
        self.name, self.horizon, self.haze, self.light_side = name, horizon, haze, light_side
        self.image = np.zeros((height, width, 3), np.float32)  # uint8 when `draw_scene` returns it
        self.surface = np.zeros((height, width), np.uint8)  # index into `SURFACES` of what is below the objects
        self.instances: list[Instance] = []  # each in front of those before it
        self.y, self.x = (positions.astype(np.float32) for positions in np.ogrid[:height, :width])
        self.nearness = np.clip((self.y - horizon) / (height - horizon), 0, 1)  # (H, 1), 1 at the lower edge

    def fill(self, surface: int, colour: np.ndarray, alpha: np.ndarray) -> None:
        """Paint a surface, (3,) or (H, W, 3), where `alpha`, (H, W) in [0, 1], is above 0."""
        self.image = mix(self.image, colour, alpha)
        self.surface[alpha > 0.5] = surface

    def draw(self, points: np.ndarray, colour: np.ndarray, opacity: float = 1.0, blur: float = 0.0) -> np.ndarray:
        """Draw a polygon, (N, 2), in a colour, (3,), brighter above and on the side of the light.

        Returns whether it covers more than half of a pixel, bool (H, W). The edge has a blur of a standard deviation
        in pixels.
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
    """Smooth noise, (height, width), of mean 0 and mostly in [-1, 1]: layers, the first with so many features."""
    total = np.zeros((height, width), np.float32)
    for layer in range(4):
        grid = rng.standard_normal((int(rows * 2**layer) + 2, int(columns * 2**layer) + 2), np.float32)
        total += cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC) * 0.5 ** (layer + 1)
    return total


WHITE = rgb('fbfaf4')


def draw_scene(rng: np.random.Generator, weights: dict[str, float]) -> Scene:
    """Draw one scene with several objects, 160 to 256 pixels wide and 128 to 200 high.

    `weights` say of the kinds of `objects.KINDS` that may be in it how likely they are where they may stand.
    """
    scene, light = draw_background(rng, SCENES)
    draw_objects(scene, rng, weights)
    return developed(scene, rng, light)


def draw_single(rng: np.random.Generator, kind: str) -> Scene:
    """Draw one object of a kind, from less than half as high as the image to almost as high or as wide as it."""
    what = KINDS[kind]
    scene, light = draw_background(rng, [name for name in SCENES if {'sky', *SCENES[name]} & set(what.surfaces)])
    height, width = scene.surface.shape
    for _ in range(20):  # if the object stands nowhere, the last place counts
        size = min(height * rng.uniform(0.4, 0.9), 0.45 * width / what.half_width)
        x, y = width * rng.uniform(0.3, 0.7), size + (height - size) * rng.uniform(0.1, 0.9)
        if 'sky' in what.surfaces or stands(scene, kind, x, y):  # what flies may also be in front of the ground
            break
    draw_object(scene, rng, kind, x, y, size)
    return developed(scene, rng, light)


def draw_background(rng: np.random.Generator, names: Collection[str]) -> tuple[Scene, np.ndarray]:
    """Draw a scene without objects, of one of some `SCENES`; returns it and the colour of its light, (3,)."""
    width, height = int(rng.integers(160, 257)), int(rng.integers(128, 201))
    zenith, haze, light = map(rgb, rng.choice(WEATHER).split())
    chances = np.array([SCENE_CHANCES[name] for name in names])
    name, horizon = str(rng.choice(list(names), p=chances / chances.sum())), int(height * rng.uniform(0.32, 0.5))
    scene = Scene(name, height, width, horizon, haze, light_side=int(rng.choice([-1, 1])))

    # The sky, with clouds and often a sun.
    up = np.clip(1 - scene.y / scene.horizon, 0, 1) * np.ones_like(scene.x)
    colour = mix(scene.haze, zenith, up**0.8)
    if rng.random() < 0.5:
        x, y = width * (0.5 + 0.35 * scene.light_side), scene.horizon * rng.uniform(0.2, 0.5)
        distance = np.hypot(scene.x - x, scene.y - y) / scene.horizon
        colour = mix(colour, rgb('fff6dc'), np.maximum(0.6 * np.exp(-4 * distance), ramp(distance, 0.1, 0.08)))
    clouds = noise(rng, height, width, 3 * height / scene.horizon, 2.5)
    cover = 0.85 * ramp(clouds, rng.uniform(-0.1, 0.4), 1.1) * ramp(up, 0, 0.35)
    colour = mix(colour, mix(WHITE, scene.haze, 0.3 * ramp(clouds, 0.5, 1.5)), cover)
    scene.fill(SURFACES.index('sky'), colour, np.ones_like(up))

    if rng.random() < 0.45:  # two ranges of mountains, the farther one paler
        rock = rgb(rng.choice(['6f7f95', '84808f', '6d8a84']))
        for peak, paleness in ((0.55, 0.55), (0.3, 0.3)):
            ridge = scene.horizon * (1 - peak * (0.6 + 0.5 * noise(rng, 1, width, 1, 3)))
            brightness = 1 + 0.2 * noise(rng, height, width, 12, 14)
            colour = mix(rock * brightness[..., None], scene.haze, paleness + 0.3 * scene.y / scene.horizon)
            scene.fill(SURFACES.index('mountain'), colour, np.clip(scene.y - ridge, 0, 1))

    draw_ground(scene, rng, *SCENES[name])
    return scene, light


def developed(scene: Scene, rng: np.random.Generator, light: np.ndarray) -> Scene:
    """The scene with its image as a camera gives it in a coloured light, darker at the edges: (H, W, 3), uint8."""
    height, width = scene.surface.shape
    from_centre = (scene.x / width - 0.5) ** 2 + (scene.y / height - 0.5) ** 2
    exposure = rng.uniform(0.92, 1.06) * (1 - 0.2 * from_centre)
    image = scene.image * light * exposure[..., None] + rng.normal(0, 0.008, scene.image.shape)
    scene.image = np.clip(image * 255 + 0.5, 0, 255).astype(np.uint8)
    return scene


def draw_ground(scene: Scene, rng: np.random.Generator, back: str, front: str | None = None) -> None:
    """Draw the ground from the horizon down, and maybe another one in front of it."""
    height, width = scene.surface.shape
    depth = height - scene.horizon
    below = (scene.y >= scene.horizon) * np.ones_like(scene.x)
    scene.fill(SURFACES.index(back), ground_colour(scene, rng, back), below)
    if front is None:
        return
    start = rng.uniform(0, 0.2) if front == 'field' else rng.uniform(0.35, 0.6)
    edge = scene.horizon + depth * start + rng.uniform(-0.1, 0.1) * (scene.x - width / 2)
    colour = ground_colour(scene, rng, front)
    if front != 'road':
        edge = edge + 0.06 * depth * noise(rng, 1, width, 1, 4)
    inside = scene.y - edge
    alpha = np.clip(inside, 0, 1) * below
    if front == 'sand':  # wet near the water, with foam at the edge
        wet, foam = ramp(inside, 22, 3), ramp(inside, 4, 2)
        colour = mix(mix(colour, 0.8 * colour, wet), WHITE, foam)
    elif front == 'road':
        road = depth * rng.uniform(0.25, 0.35)
        dashes = ramp(np.abs(inside - 0.48 * road), 2, 1) * (np.sin(scene.x / 6) > -0.2)
        kerbs = ramp(np.minimum(inside, road - inside), 3, 2)
        colour = mix(colour, WHITE, np.maximum(0.85 * dashes, 0.5 * kerbs))
        alpha *= np.clip(road - inside, 0, 1)
    scene.fill(SURFACES.index(front), colour, alpha)


def ground_colour(scene: Scene, rng: np.random.Generator, surface: str) -> np.ndarray:
    """Colour of a ground, (H, W, 3), with a texture whose features grow towards the viewer."""
    height, width = scene.surface.shape
    colours, (rows, columns), contrast = GROUNDS[surface]
    texture = noise(rng, 256, width, rows, columns)[(255 * scene.nearness[:, 0] ** 0.6).astype(int)]
    brightness = 1.04 - 0.12 * scene.nearness + contrast * texture + 0.06 * noise(rng, height, width, 4, 3)
    if surface == 'field':  # its rows run to a vanishing point
        across = (scene.x / width - rng.uniform(0, 1)) / np.maximum(scene.nearness, 0.01)
        brightness += 0.26 * np.cos(12 * np.pi * across) * ramp(scene.nearness, 0.1, 0.4)
    colour = rgb(rng.choice(colours.split())) * brightness[..., None]
    return mix(colour, scene.haze, 0.4 * ramp(scene.nearness, 0.25, 0))


def draw_objects(scene: Scene, rng: np.random.Generator, weights: dict[str, float]) -> None:
    """Draw objects of kinds that may stand on the scene's surfaces, and sometimes a crowd."""
    surfaces = {'sky', *SCENES[scene.name]}
    kinds = [kind for kind in weights if surfaces & set(KINDS[kind].surfaces)]
    chances = np.array([weights[kind] for kind in kinds])
    orders = [(draw_object, kind) for kind in rng.choice(kinds, rng.integers(4, 10), p=chances / chances.sum())]
    if rng.random() < CROWD_CHANCE:
        orders.insert(0, (draw_crowd, rng.choice([kind for kind in kinds if KINDS[kind].crowds])))
    placed = []
    for draw, kind in orders:
        for _ in range(20):
            x, y, size = propose(scene, rng, kind)
            half = KINDS[kind].half_width * size
            box = np.array([[x - half, y - size], [x + half, y]])
            if stands(scene, kind, x, y, half) and all(overlap(box, other) < MAX_OVERLAP for *_, other in placed):
                placed.append((draw, str(kind), x, y, size, box))
                break
    for draw, kind, x, y, size, _ in sorted(placed, key=lambda item: item[3]):  # the far ones first
        draw(scene, rng, kind, x, y, size)


def draw_crowd(scene: Scene, rng: np.random.Generator, kind: str, x: float, y: float, size: float) -> None:
    """Draw a group around a base (x, y); it becomes one crowd instance if at least 4 members find a place."""
    first = len(scene.instances)
    size = max(0.55 * size, MIN_SIZE)
    for row in (-0.35, 0, 0.35):
        for column in rng.uniform(-1.6, 1.6, rng.integers(2, 5)):
            place = x + column * size, y + row * size
            if stands(scene, kind, *place):
                draw_object(scene, rng, kind, *place, size)
    members = scene.instances[first:]
    if len(members) > 3:
        mask = np.any([member.mask for member in members], axis=0)
        scene.instances[first:] = [Instance(kind, mask, crowd=True)]


def propose(scene: Scene, rng: np.random.Generator, kind: str) -> tuple[float, float, float]:
    """Choose the base (x, y) and the height of an object at random, in pixels."""
    height, width = scene.surface.shape
    x = width * rng.uniform(0.03, 0.97)
    if 'sky' in KINDS[kind].surfaces:
        return x, scene.horizon * rng.uniform(0.45, 0.9), scene.horizon * KINDS[kind].height * rng.uniform(0.5, 1)
    nearness = rng.uniform(0.03, 0.97)
    size = height * KINDS[kind].height * (0.16 + 0.5 * nearness) * rng.uniform(0.8, 1.25)
    return x, scene.horizon + (height - scene.horizon) * nearness, max(size, MIN_SIZE)


def stands(scene: Scene, kind: str, x: float, y: float, half_width: float = 0) -> bool:
    """Whether the base of an object is on a surface that it may stand on."""
    height, width = scene.surface.shape
    columns = np.clip(x + half_width * np.array([-0.6, 0, 0.6]), 0, width - 1).astype(int)
    base = scene.surface[int(np.clip(y, 0, height - 1)), columns]
    return all(SURFACES[surface] in KINDS[kind].surfaces for surface in base)


def overlap(first: np.ndarray, second: np.ndarray) -> float:
    """Intersection of two boxes, [[left, top], [right, bottom]], over the area of the smaller one."""
    shared = np.minimum(first[1], second[1]) - np.maximum(first[0], second[0])
    return np.prod(shared.clip(0)) / min(np.prod(box[1] - box[0]) for box in (first, second))


def draw_object(scene: Scene, rng: np.random.Generator, kind: str, x: float, y: float, size: float) -> None:
    """Draw an object in front of all others, with its shadow and the haze of its distance."""
    what = KINDS[kind]
    colours = {name: rgb(rng.choice(codes.split())) * rng.uniform(0.92, 1.06) for name, codes in PALETTES.items()}
    fog = 0
    if 'sky' not in what.surfaces:
        fog = 0.35 * ramp((y - scene.horizon) / (scene.surface.shape[0] - scene.horizon), 0.35, 0)
        half = what.half_width * size
        shadow = oval(x - 0.3 * scene.light_side * half, y, 0.9 * half, 0.2 * half + 1)
        scene.draw(shadow, colours['shade'], 0.3, blur=0.06 * size)
    angle = np.deg2rad(rng.normal(0, what.tilt))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = size * turn @ np.diag([rng.choice([-1, 1]) * rng.uniform(0.9, 1.1), -1])
    mask = np.zeros(scene.surface.shape, bool)
    for name, points in what.shapes:
        points = (np.array(points) - (0, 0.5)) @ matrix.T + (x, y - size / 2)
        mask |= scene.draw(points, mix(colours[name], scene.haze, fog), OPACITY.get(name, 1))
    for instance in scene.instances:
        instance.mask &= ~mask
    scene.instances.append(Instance(kind, mask))


def save(pixels: np.ndarray, path: Path) -> None:
    """Write an image, uint8, into a folder that is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=93)
