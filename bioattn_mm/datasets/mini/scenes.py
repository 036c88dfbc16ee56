"""Draws the miniature scenes: a sky, perhaps mountains, one of several grounds, and objects on them.

Both miniatures are made of these scenes; they differ in which objects are likely and in what is written down.
"""

from dataclasses import dataclass

import numpy as np

from .drawing import Canvas, Instance, Patch, mix, noise, ramp, rgb
from .objects import KINDS

SURFACES = ('sky', 'mountain', 'grass', 'sea', 'sand', 'field', 'road')  # ADE20K's names
SKY, MOUNTAIN, GRASS, SEA, SAND, FIELD, ROAD = range(len(SURFACES))


@dataclass
class Scene:
    """A finished image and who owns its pixels.

    Attributes:
        name (str): Key of `PLACES`, the kind of scene.
        image (np.ndarray): (H, W, 3) uint8 RGB.
        surface (np.ndarray): (H, W) uint8, index into `SURFACES`, below all objects.
        instances (list[Instance]): Objects in painting order with their visible masks.
    """

    name: str
    image: np.ndarray
    surface: np.ndarray
    instances: list[Instance]


@dataclass
class Weather:
    """The light of a scene.

    Attributes:
        zenith (np.ndarray): (3,) float32, colour of the sky's top.
        horizon (np.ndarray): (3,) float32, colour of the sky's lower end and of the haze on distant things.
        light (np.ndarray): (3,) float32, colour that everything is multiplied by.
        clouds (float): How much of the sky they cover, about -0.1 (few) to 0.7 (nearly all).
    """

    zenith: np.ndarray
    horizon: np.ndarray
    light: np.ndarray
    clouds: float

    @classmethod
    def random(cls, rng):
        choice = rng.choice(4, p=[0.5, 0.2, 0.15, 0.15])
        zenith, horizon, light, clouds = [
            (rgb(60, 124, 206), rgb(186, 216, 236), rgb(255, 252, 244), 0.1),  # fair
            (rgb(122, 140, 162), rgb(206, 212, 216), rgb(226, 232, 240), 0.55),  # overcast
            (rgb(70, 94, 158), rgb(250, 196, 140), rgb(255, 228, 192), 0.2),  # evening
            (rgb(110, 164, 216), rgb(250, 226, 206), rgb(255, 244, 230), 0.0),  # morning haze
        ][choice]
        tint = rng.uniform(0.94, 1.06, 3).astype(np.float32)
        return cls(zenith * tint, horizon * tint, light, clouds + rng.uniform(-0.12, 0.15))


def paint_sky(canvas, rng, weather, horizon):
    """Gradient, sun and clouds that flatten towards the horizon; `horizon` is its row in pixels."""
    height = np.clip((horizon - canvas.y) / horizon, 0, 1)
    colour = mix(weather.horizon, weather.zenith, height**0.75)
    sun_x = canvas.image.shape[1] * (0.5 + canvas.light_side * rng.uniform(0.1, 0.42))
    sun_y = horizon * rng.uniform(0.12, 0.6)
    from_sun = np.hypot(canvas.x - sun_x, canvas.y - sun_y) / horizon
    sunny = weather.clouds < 0.35 and rng.random() < 0.5
    if sunny:
        colour = mix(colour, rgb(255, 244, 214), 0.75 * np.exp(-5 * from_sun))
        colour = mix(colour, rgb(255, 252, 238), ramp(from_sun, 0.085, 0.065))
    # Clouds lie on a ceiling: rows of them come closer to each other towards the horizon.
    depth = 0.35 + height
    x, y = (canvas.x - canvas.image.shape[1] / 2) / horizon / depth * 1.5, 2.6 * np.log(depth)
    cover = noise(rng, x, y, 5)
    thickness = ramp(cover, 0.32 - weather.clouds, 0.95 - weather.clouds) * ramp(height, 0.0, 0.3)
    underside = ramp(cover, 0.6 - weather.clouds, 1.5 - weather.clouds)
    shade = np.clip(0.98 + 0.1 * noise(rng, x * 2.5, y * 2.5, 3) - 0.24 * underside, 0.6, 1.05)
    clouds = mix(weather.light, weather.horizon, 0.25) * shade[..., None]
    canvas.fill(np.full_like(canvas.y, -1), mix(colour, clouds, 0.9 * thickness), SKY)


def paint_mountains(canvas, rng, weather, horizon):
    """One or two ranges, the farther paler, with lit and shaded slopes and snow on the high parts."""
    width = canvas.image.shape[1]
    ranges = rng.integers(1, 3)
    rock = [rgb(104, 98, 108), rgb(112, 100, 88), rgb(88, 104, 98)][rng.integers(3)]
    for distance in range(ranges, 0, -1):
        peak = horizon * rng.uniform(0.3, 0.6) * (1.15 if distance == 2 else 0.75)
        ridge_x = canvas.x[:1] / width * rng.uniform(3, 4.5)
        jagged = noise(rng, ridge_x * 2.2, np.zeros_like(ridge_x), 4)
        outline = peak * np.clip(
            0.62 + 0.45 * noise(rng, ridge_x, np.zeros_like(ridge_x), 1) + 0.3 * jagged, 0.1, 1.3
        )
        region = (horizon - outline) - canvas.y
        # Relief: stretched noise whose slope along x says which flanks face the light.
        scale = 0.3 * horizon
        relief = noise(rng, (canvas.x + 0.4 * canvas.y) / scale, (canvas.y - 0.3 * canvas.x) / scale, 5)
        facing = canvas.light_side * np.gradient(relief, axis=1) * 4.5
        brightness = np.clip(0.86 + 1.1 * facing + 0.12 * relief, 0.4, 1.5)
        height = (horizon - canvas.y) / peak
        snow = ramp(height + 0.35 * relief, 0.72, 0.86)
        colour = mix(rock, rgb(238, 242, 248), snow) * brightness[..., None]
        wooded = ramp(height + 0.2 * relief, 0.45, 0.2)
        colour = mix(colour, rgb(74, 104, 72) * brightness[..., None], 0.7 * wooded)
        haze = 0.18 + 0.25 * (distance - 1) + 0.25 * ramp(height, 0.5, 0)
        canvas.fill(np.maximum(region, canvas.y - horizon - 2), mix(colour, weather.horizon, haze), MOUNTAIN)


def ground_position(canvas, horizon):
    """Perspective: (nearness, x, z) of each pixel, each (H, W) float32.

    Nearness is 0 at the horizon and 1 at the lower edge; x and z are positions on the ground in units of the
    camera's height, across and away.
    """
    height, width = canvas.surface.shape
    nearness = np.clip((canvas.y - horizon) / (height - horizon), 0.004, 1)
    return nearness, (canvas.x - width / 2) / (height - horizon) / nearness, 1 / nearness


def grain(canvas, rng, nearness, far_size, near_size, stretch=1.0):
    """Upright noise whose features grow from `far_size` to `near_size` pixels towards the viewer: (H, W)."""
    # A blend of two scales: one scale that varies over the image would smear into streaks.
    far, near = [noise(rng, canvas.x / size, canvas.y / (size * stretch), 2) for size in (far_size, near_size)]
    return far * np.sqrt(1 - nearness) + near * np.sqrt(nearness)


def grass_colour(canvas, rng, weather, horizon):
    """Patches of lighter and darker green, upright blades and a few flowers: (H, W, 3)."""
    nearness, x, z = ground_position(canvas, horizon)
    green = [rgb(98, 142, 52), rgb(120, 156, 66), rgb(84, 130, 62), rgb(136, 152, 70)][rng.integers(4)]
    patches = noise(rng, x * 1.4, z * 1.4, 3)
    blades = grain(canvas, rng, nearness, 1.7, 2.8, stretch=3)
    brightness = 1 + 0.2 * patches + (0.1 + 0.22 * nearness) * blades
    colour = mix(green, rgb(186, 178, 84), 0.35 * ramp(patches, 0.2, 1.1)) * np.clip(brightness, 0.4, 1.6)[..., None]
    if rng.random() < 0.5:
        petals = [rgb(250, 246, 240), rgb(250, 216, 70), rgb(220, 90, 110)][rng.integers(3)]
        blossoms = ramp(noise(rng, canvas.x / 1.9, canvas.y / 1.6), 0.95, 1.1) * ramp(nearness, 0.1, 0.5)
        colour = mix(colour, petals, 0.9 * blossoms * ramp(noise(rng, x, z, 2), 0.0, 0.5))
    return mix(colour, weather.horizon, 0.4 * ramp(nearness, 0.3, 0))


def sea_colour(canvas, rng, weather, horizon):
    """Waves in perspective with bright crests and the sky mirrored far out: (H, W, 3)."""
    nearness, x, z = ground_position(canvas, horizon)
    deep = [rgb(24, 92, 132), rgb(26, 110, 130), rgb(38, 84, 120)][rng.integers(3)]
    shallow = rgb(64, 168, 172)
    colour = mix(deep, shallow, 0.75 * ramp(nearness, 0.15, 0.9))
    colour = mix(colour, weather.horizon, 0.5 * ramp(nearness, 0.22, 0))
    # Rows of waves one above the other; the log keeps far rows apart by more than a pixel.
    rows = np.log(nearness + 0.06) * rng.uniform(20, 26)
    waves = noise(rng, x * 0.9 + canvas.x / 34, rows * 0.55, 3)
    crests = ramp(np.sin(rows * 2.2 + 3.5 * waves), 0.55, 1) * ramp(waves, -0.3, 0.5)
    brightness = 1 + 0.34 * waves
    colour = mix(colour * brightness[..., None], mix(weather.horizon, weather.light, 0.6), 0.42 * crests)
    sun_x = canvas.image.shape[1] * (0.5 + canvas.light_side * 0.25)
    glitter = np.exp(-(((canvas.x - sun_x) / (10 + 45 * nearness)) ** 2)) * ramp(waves, 0.25, 0.7)
    return mix(colour, rgb(255, 250, 232), 0.5 * glitter)


def sand_colour(canvas, rng, weather, horizon):
    """Wind ripples, grains and a few hollows: (H, W, 3)."""
    nearness, x, z = ground_position(canvas, horizon)
    sand = [rgb(226, 200, 150), rgb(214, 184, 138), rgb(236, 214, 172)][rng.integers(3)]
    hollows = noise(rng, x * 2, z * 2, 3)
    bend = noise(rng, x * 1.2, z * 1.2, 2)
    ripples = np.sin(np.log(nearness + 0.05) * 60 + 5 * bend + x * 2) * ramp(nearness, 0.1, 0.6)
    grains = rng.standard_normal(nearness.shape).astype(np.float32)
    brightness = 1 + 0.1 * hollows + 0.045 * ripples + 0.035 * grains
    return mix(sand * brightness[..., None], weather.horizon, 0.3 * ramp(nearness, 0.25, 0))


def field_colour(canvas, rng, weather, horizon):
    """Rows of a crop, or furrows, that run to a vanishing point: (H, W, 3)."""
    nearness, x, z = ground_position(canvas, horizon)
    crop, soil = [
        (rgb(222, 184, 84), rgb(158, 114, 52)),  # ripe wheat
        (rgb(168, 122, 84), rgb(104, 70, 48)),  # ploughed earth
        (rgb(232, 206, 60), rgb(116, 128, 46)),  # rape
    ][rng.integers(3)]
    slant = rng.uniform(-0.8, 0.8)
    rows = rng.uniform(3.0, 4.2)
    wobble = 0.1 * noise(rng, x, z * 0.7) * nearness
    phase = (x + slant * z + wobble) * rows
    row_pixels = (canvas.surface.shape[0] - horizon) * nearness / rows
    visible = ramp(row_pixels, 3, 9)  # narrower rows would alias
    ridge = 0.5 + 0.5 * np.cos(2 * np.pi * phase)
    plants = grain(canvas, rng, nearness, 1.7, 3, stretch=1.3)
    cover = np.clip(0.62 + (1.1 * ridge - 0.62) * visible + 0.3 * plants, 0, 1)
    brightness = 1 + 0.28 * plants * (0.4 + 0.6 * nearness) + 0.1 * noise(rng, x, z, 2)
    colour = mix(soil, crop, cover) * brightness[..., None]
    return mix(colour, weather.horizon, 0.35 * ramp(nearness, 0.25, 0))


def asphalt_colour(canvas, rng, nearness):
    """Grey with coarse grains and worn patches: (H, W, 3)."""
    grey = rgb(112, 112, 118) * rng.uniform(0.8, 1.15)
    grains = rng.standard_normal(nearness.shape).astype(np.float32) * (0.03 + 0.06 * nearness)
    worn = noise(rng, canvas.x / 40, canvas.y / 14, 3)
    return grey * (1 + 0.09 * worn + grains)[..., None]


def paint_pasture(canvas, rng, weather, horizon):
    """Nothing but grass."""
    canvas.fill(horizon - canvas.y, grass_colour(canvas, rng, weather, horizon), GRASS)


def paint_farm(canvas, rng, weather, horizon):
    """A field behind which a strip of grass may remain."""
    paint_pasture(canvas, rng, weather, horizon)
    height, width = canvas.surface.shape
    border = horizon + (height - horizon) * rng.uniform(0.0, 0.22)
    bumps = 3 * noise(rng, canvas.x / 50, np.zeros_like(canvas.x), 2)
    region = border + bumps + rng.uniform(-0.08, 0.08) * (canvas.x - width / 2) - canvas.y
    colour = field_colour(canvas, rng, weather, horizon)
    canvas.fill(np.maximum(region, horizon - canvas.y), colour, FIELD)


def paint_coast(canvas, rng, weather, horizon):
    """The sea, a beach in front of it and foam where they meet."""
    below = horizon - canvas.y
    canvas.fill(below, sea_colour(canvas, rng, weather, horizon), SEA)
    height, width = canvas.surface.shape
    shore = horizon + (height - horizon) * rng.uniform(0.45, 0.72)
    slant = rng.uniform(-0.22, 0.22) * (canvas.x - width / 2)
    region = shore + slant + 7 * noise(rng, canvas.x / 55, canvas.y / 200, 3) - canvas.y
    sand = sand_colour(canvas, rng, weather, horizon)
    wet = ramp(region, -20, -4)
    sand = mix(sand, sand * 0.68 + weather.horizon * 0.1, wet)
    white = rgb(248, 250, 250)
    lace = noise(rng, canvas.x / 6, canvas.y / 3, 2)
    foam = ramp(np.abs(region + 0.5 + 2 * lace), 4.5, 1.5)
    canvas.fill(np.maximum(region, below + 3), mix(sand, white, 0.9 * foam), SAND)
    # The foam reaches into the sea without making it sand.
    canvas.image = mix(canvas.image, white, 0.75 * foam * (region > 0) * (below < -3))


def paint_highway(canvas, rng, weather, horizon):
    """A bending road through grass to the horizon, with edge lines and a dashed middle line."""
    paint_pasture(canvas, rng, weather, horizon)
    width = canvas.surface.shape[1]
    nearness, _, _ = ground_position(canvas, horizon)
    start = width * rng.uniform(0.35, 0.65)
    end = width * rng.uniform(0.3, 0.7)
    bend = width * rng.uniform(-0.25, 0.25)
    centre = end + (start - end) * nearness + bend * nearness * (1 - nearness)
    half = 1.2 + width * rng.uniform(0.26, 0.36) * nearness
    across = (canvas.x - centre) / half  # -1 and 1 at the road's edges
    colour = asphalt_colour(canvas, rng, nearness)
    line = 0.025 + 0.3 / half  # not thinner than a third of a pixel
    white = rgb(236, 234, 222)
    colour = mix(colour, white, 0.9 * ramp(np.abs(np.abs(across) - 0.9), 2 * line, 0.7 * line))
    dashes = ramp(np.sin(np.log(nearness) * 9), -0.2, 0.1)
    colour = mix(colour, white, 0.9 * dashes * ramp(np.abs(across), 2 * line, 0.7 * line))
    colour = mix(colour, weather.horizon, 0.35 * ramp(nearness, 0.25, 0))
    region = np.maximum((np.abs(across) - 1) * half, horizon - canvas.y)
    verge = ramp(region, 5, 0)
    canvas.image = mix(canvas.image, rgb(150, 136, 104), 0.45 * verge * (region > 0) * nearness)
    canvas.fill(region, colour, ROAD)


def paint_street(canvas, rng, weather, horizon):
    """A road across grass from left to right with kerbs and a dashed middle line."""
    paint_pasture(canvas, rng, weather, horizon)
    height, width = canvas.surface.shape
    nearness, x, _ = ground_position(canvas, horizon)
    top = horizon + (height - horizon) * rng.uniform(0.3, 0.45)
    bottom = top + (height - horizon) * rng.uniform(0.36, 0.5)
    slope = rng.uniform(-0.05, 0.05)
    y = canvas.y + slope * (canvas.x - width / 2)
    down = (y - top) / (bottom - top)
    colour = asphalt_colour(canvas, rng, nearness)
    pixel = 1 / (bottom - top)
    white = rgb(236, 234, 222)
    dashes = ramp(np.sin(x * nearness * rng.uniform(14, 18)), -0.1, 0.2)
    colour = mix(colour, white, 0.9 * dashes * ramp(np.abs(down - 0.45), 0.035 + pixel, 0.015))
    kerb = np.minimum(np.abs(down - 0.02), np.abs(down - 0.97))
    colour = mix(colour, rgb(196, 192, 184), ramp(kerb, 0.045 + pixel, 0.03))
    canvas.fill(np.maximum(top - y, y - bottom), colour, ROAD)


GROUNDS = {
    'pasture': paint_pasture,
    'farm': paint_farm,
    'coast': paint_coast,
    'highway': paint_highway,
    'street': paint_street,
}
# Which kinds may stand on which surface of a scene (named as in ADE20K), and how many it gets.
PLACES = {
    'pasture': {
        SKY: (('kite',), (0, 2)),
        GRASS: (('broadleaf', 'conifer', 'house', 'flag', 'ball', 'umbrella', 'hydrant'), (4, 7)),
    },
    'farm': {
        SKY: (('kite',), (0, 1)),
        FIELD: (('broadleaf', 'conifer', 'house', 'flag', 'ball', 'umbrella'), (3, 6)),
    },
    'coast': {
        SKY: (('kite',), (0, 2)),
        SEA: (('sailing boat', 'fishing boat'), (2, 4)),
        SAND: (('ball', 'flag', 'umbrella', 'surfboard'), (2, 5)),
    },
    'highway': {
        SKY: (('kite',), (0, 1)),
        GRASS: (
            ('broadleaf', 'conifer', 'house', 'flag', 'stop sign', 'traffic light', 'hydrant', 'ball'),
            (3, 6),
        ),
        ROAD: (('car end',), (1, 3)),
    },
    'street': {
        GRASS: (
            ('broadleaf', 'conifer', 'house', 'flag', 'stop sign', 'traffic light', 'hydrant', 'ball'),
            (4, 6),
        ),
        ROAD: (('car side',), (1, 3)),
    },
}
CROWDS = {'ball', 'umbrella', 'sailing boat', 'kite'}  # kinds that come in groups too


def place_objects(canvas, rng, horizon, places, weights):
    """Choose objects and where they stand.

    Args:
        canvas (Canvas): Painted surfaces.
        rng (np.random.Generator): Source of chance.
        horizon (float): Row of the horizon in pixels.
        places (dict): One value of `PLACES`.
        weights (dict[str, float]): How likely each kind is; kinds that are missing do not occur.

    Returns:
        list[tuple]: (kind, x, y, size) of each object: its base and height in pixels, far ones first.
    """
    image_height, image_width = canvas.surface.shape
    placed = []
    for surface, (kinds, (fewest, most)) in places.items():
        kinds = [kind for kind in kinds if kind in weights]
        if not kinds:
            continue
        chances = np.array([weights[kind] for kind in kinds])
        for _ in range(rng.integers(fewest, most + 1)):
            kind = kinds[rng.choice(len(kinds), p=chances / chances.sum())]
            for _ in range(12):
                x, y, size = propose(canvas, rng, horizon, kind, surface)
                if stands_free(canvas, kind, x, y, size, surface, placed):
                    placed.append((kind, x, y, size))
                    break
    return sorted(placed, key=lambda item: item[2])


def propose(canvas, rng, horizon, kind, surface):
    """A random base (x, y) and height, in pixels, for an object of this kind."""
    height, width = canvas.surface.shape
    x = rng.uniform(0.03, 0.97) * width
    if surface == SKY:
        y = horizon * rng.uniform(0.4, 0.9)
        return x, y, horizon * KINDS[kind].height * rng.uniform(0.45, 1.0)
    nearness = rng.beta(1.3, 1.5)
    y = horizon + (height - horizon) * (0.03 + 0.94 * nearness)
    size = height * KINDS[kind].height * (0.16 + 0.5 * nearness) * rng.uniform(0.8, 1.25)
    return x, y, max(size, 11)


def stands_free(canvas, kind, x, y, size, surface, placed):
    """Whether the whole base is on the surface and neither this object nor another would be mostly hidden."""
    height, width = canvas.surface.shape
    left, _, right, _ = KINDS[kind].extent
    rows = np.clip([y, y + 0.08 * size], 0, height - 1).astype(int)
    columns = np.clip([x + 0.6 * left * size, x, x + 0.6 * right * size], 0, width - 1).astype(int)
    if (canvas.surface[np.ix_(rows, columns)] != surface).any():
        return False
    for other_kind, other_x, other_y, other_size in placed:
        other_left, _, other_right, _ = KINDS[other_kind].extent
        overlap_x = min(x + right * size, other_x + other_right * other_size) - max(
            x + left * size, other_x + other_left * other_size
        )
        overlap_y = min(y, other_y) - max(y - size, other_y - other_size)
        smaller = min((right - left) * size * size, (other_right - other_left) * other_size * other_size)
        if max(overlap_x, 0) * max(overlap_y, 0) > 0.4 * smaller:
            return False
    return True


def stamp_object(canvas, rng, weather, horizon, kind, x, y, size):
    """Draw one object with its shadow or its mirror image and the haze of its distance."""
    what = KINDS[kind]
    angle = np.deg2rad(rng.normal(0, what.tilt))
    patch = Patch(canvas, x, y, size, what.extent, angle, mirrored=rng.random() < 0.5)
    what.draw(patch, rng)
    nearness = (y - horizon) / (canvas.surface.shape[0] - horizon)
    haze = 0.0 if kind == 'kite' else 0.35 * float(ramp(nearness, 0.3, 0))
    patch.colour = patch.colour * (1 - haze) + weather.horizon * patch.alpha[..., None] * haze
    if kind.endswith('boat'):
        canvas.reflect(patch, rng, SEA)
    elif kind != 'kite':
        half = 0.6 * max(-what.extent[0], what.extent[2]) * size
        canvas.shadow(x - 0.5 * canvas.light_side * half, y, half + 2, 0.22 * half + 1.5)
    canvas.stamp(patch, kind)


def stamp_crowd(canvas, rng, weather, horizon, kind, surface):
    """Draw a heap, fleet or flock of one kind and record it as a single instance that is a crowd."""
    first = len(canvas.instances)
    height, width = canvas.surface.shape
    x, y, size = propose(canvas, rng, horizon, kind, surface)
    size = max(0.55 * size, 11)
    for row in range(3):
        for _ in range(rng.integers(2, 5)):
            member_x = x + rng.uniform(-1.6, 1.6) * size
            member_y = y + (row - 1) * 0.35 * size
            row_index, column_index = (
                int(np.clip(member_y, 0, height - 1)),
                int(np.clip(member_x, 0, width - 1)),
            )
            if canvas.surface[row_index, column_index] != surface:
                continue
            stamp_object(canvas, rng, weather, horizon, kind, member_x, member_y, size * rng.uniform(0.85, 1.15))
    members = canvas.instances[first:]
    if len(members) > 3:
        mask = np.any([member.mask for member in members], axis=0)
        canvas.instances[first:] = [Instance(kind, mask, crowd=True)]


def develop(canvas, rng, weather):
    """From light to image: tint, exposure, vignette and sensor noise; (H, W, 3) uint8."""
    height, width = canvas.surface.shape
    from_centre = np.hypot(canvas.x / width - 0.5, canvas.y / height - 0.5)
    exposure = rng.uniform(0.88, 1.1) * (1 - 0.22 * from_centre**2)
    image = canvas.image * weather.light * exposure[..., None]
    image = image + rng.normal(0, rng.uniform(0.004, 0.014), image.shape)
    return np.clip(image * 255 + 0.5, 0, 255).astype(np.uint8)


def draw_scene(rng, weights, crowd_chance):
    """Draw one scene.

    Args:
        rng (np.random.Generator): Source of all chance; the same state gives the same scene.
        weights (dict[str, float]): How likely each kind of `objects.KINDS` is; missing kinds do not occur.
        crowd_chance (float): Probability of a crowd in scenes with a kind that comes in groups.

    Returns:
        Scene: An image 160 to 256 pixels wide and 128 to 200 high.
    """
    width, height = int(rng.integers(160, 257)), int(rng.integers(128, 201))
    canvas = Canvas(height, width, light_side=int(rng.choice([-1, 1])))
    weather = Weather.random(rng)
    horizon = height * rng.uniform(0.3, 0.52)
    # The coast is the one place of three classes, so it comes more often than the others.
    scene = str(rng.choice(list(PLACES), p=[0.28 if name == 'coast' else 0.18 for name in PLACES]))
    paint_sky(canvas, rng, weather, horizon)
    if rng.random() < 0.45:
        paint_mountains(canvas, rng, weather, horizon)
    GROUNDS[scene](canvas, rng, weather, horizon)

    places = PLACES[scene]
    objects = place_objects(canvas, rng, horizon, places, weights)
    groups = [(k, s) for s, (kinds, _) in places.items() for k in kinds if k in weights and k in CROWDS]
    if groups and rng.random() < crowd_chance:
        # The crowd is behind everything else, so that single objects stay whole and visible.
        stamp_crowd(canvas, rng, weather, horizon, *groups[rng.integers(len(groups))])
    for kind, x, y, size in objects:
        stamp_object(canvas, rng, weather, horizon, kind, x, y, size)
    return Scene(scene, develop(canvas, rng, weather), canvas.surface, canvas.instances)
