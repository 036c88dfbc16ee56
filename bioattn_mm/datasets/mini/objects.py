"""The objects of the miniature scenes: how each kind is drawn and what it is called in ADE20K and COCO."""

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np

from .drawing import mix, ramp, rgb

WHITE = rgb(246, 244, 238)
CREAM = rgb(240, 224, 190)
BLACK = rgb(34, 34, 40)
GLASS = rgb(126, 166, 190)
STEEL = rgb(150, 154, 160)
WOOD = rgb(120, 84, 56)
BRIGHT = [
    rgb(214, 48, 44),
    rgb(242, 142, 38),
    rgb(248, 204, 60),
    rgb(58, 158, 92),
    rgb(46, 112, 190),
    rgb(126, 74, 156),
    rgb(34, 160, 176),
    rgb(230, 110, 150),
]


def jitter(rng, colour, amount=0.06):
    """A colour close to the given one."""
    return np.clip(colour * rng.uniform(1 - amount, 1 + amount) + rng.uniform(-amount, amount, 3) / 2, 0, 1).astype(
        np.float32
    )


def different_colours(rng, count):
    """`count` different colours of `BRIGHT`, each a little varied."""
    return [jitter(rng, BRIGHT[i]) for i in rng.permutation(len(BRIGHT))[:count]]


def draw_broadleaf(patch, rng):
    """A trunk and a crown of overlapping leafy balls, each lit from its own upper side."""
    foliage = jitter(
        rng,
        [rgb(74, 128, 48), rgb(98, 148, 56), rgb(54, 108, 58), rgb(140, 148, 50), rgb(196, 118, 42)][
            rng.choice(5, p=[0.3, 0.25, 0.25, 0.1, 0.1])
        ],
    )
    lean = rng.uniform(-0.05, 0.05)
    trunk = patch.polygon([(-0.06, 0), (0.06, 0), (0.03 + lean, 0.6), (-0.03 + lean, 0.6)])
    bark = 1 + 0.35 * patch.noise(rng, 40, 2, stretch=6) + 0.5 * patch.light * patch.x / 0.06 * 0.3
    patch.paint_outlined(trunk, WOOD * np.clip(bark, 0.4, 1.5)[..., None])

    balls = [(lean, 0.64, 0.25)]
    for angle in np.linspace(0, 2 * np.pi, 8, endpoint=False) + rng.uniform(0, 1):
        reach = rng.uniform(0.14, 0.2)
        balls.append((lean + 1.15 * reach * np.cos(angle), 0.66 + reach * np.sin(angle), rng.uniform(0.11, 0.16)))
    leaves = patch.noise(rng, 22, 3)
    crown = np.full(patch.x.shape, np.inf, np.float32)
    lit = np.zeros(patch.x.shape, np.float32)
    for x, y, radius in balls:
        ball = patch.circle(x, y, radius)
        towards_light = (0.5 * patch.light * (patch.x - x) + 0.87 * (patch.y - y)) / radius
        lit = np.where(ball < crown, towards_light, lit)
        crown = np.minimum(crown, ball)
    whole = (patch.y - 0.66) * 0.9 + patch.light * patch.x * 0.5  # the crown as one big ball
    brightness = 0.92 + 0.16 * lit + 0.8 * whole + 0.42 * leaves * patch.detail(1 / 22)
    colour = mix(foliage, rgb(230, 220, 90), 0.22 * ramp(brightness, 0.95, 1.6))
    patch.paint_outlined(crown + 0.035 * leaves, colour * np.clip(brightness, 0.35, 1.7)[..., None], darkness=0.55)


def draw_conifer(patch, rng):
    """Overlapping tiers of needles that darken towards the shade of the tier above."""
    foliage = jitter(rng, [rgb(40, 92, 62), rgb(52, 104, 58), rgb(38, 84, 78)][rng.integers(3)])
    patch.paint_outlined(patch.box(-0.04, 0, 0.04, 0.2), WOOD * 0.8)
    needles = patch.noise(rng, 28, 2, stretch=2.5)
    width = rng.uniform(0.26, 0.34)
    tiers = 5
    for tier in range(tiers):
        bottom = 0.1 + 0.16 * tier
        top = bottom + 0.36 - 0.03 * tier if tier < tiers - 1 else 1
        half = width * (1 - tier / tiers) ** 0.8 + 0.03
        shape = patch.polygon([(-half, bottom), (0, bottom + 0.035), (half, bottom), (0, top)])
        shape = shape + 0.03 * needles
        height = np.clip((patch.y - bottom) / (top - bottom), 0, 1)
        brightness = 1.2 - 0.85 * height + 0.35 * patch.light * patch.x / half + 0.4 * needles * patch.detail(1 / 28)
        patch.paint_outlined(shape, foliage * np.clip(brightness, 0.35, 1.7)[..., None], darkness=0.55)


def bricks(patch, rng, width=0.11, height=0.05):
    """Brightness of a brick wall: light mortar lines between bricks of slightly different tones."""
    row = np.floor(patch.y / height)
    along = patch.x / width + 0.5 * np.mod(row, 2)
    line = np.minimum(
        np.abs(np.mod(along + 0.5, 1) - 0.5) * width, np.abs(np.mod(patch.y / height + 0.5, 1) - 0.5) * height
    )
    mortar = ramp(line, 0.009, 0.003) * patch.detail(height)
    tone = np.sin(np.floor(along) * 12.9 + row * 78.2 + rng.uniform(0, 6)) * 0.1 * patch.detail(height)
    return 1 + tone + 0.38 * mortar


def draw_house(patch, rng):
    """A gabled front with a door, a long side with windows, a tiled roof and a chimney."""
    split = rng.uniform(-0.18, -0.05)
    eaves = rng.uniform(0.46, 0.54)
    ridge = rng.uniform(0.84, 0.92)
    left, right = -0.58, 0.6
    middle = (left + split) / 2
    plaster = [
        rgb(238, 226, 200),
        rgb(226, 200, 160),
        rgb(214, 222, 224),
        rgb(232, 190, 170),
        rgb(176, 88, 66),
    ]
    choice = rng.integers(len(plaster))
    wall = jitter(rng, plaster[choice])
    texture = bricks(patch, rng) if choice == 4 else 1 + 0.08 * patch.noise(rng, 16, 3)
    roof_colour = jitter(
        rng, [rgb(168, 72, 50), rgb(128, 62, 52), rgb(92, 98, 112), rgb(120, 84, 60)][rng.integers(4)]
    )
    # The gable faces left and the long side right: whichever the light comes from is the bright one.
    front_light, side_light = (1.05, 0.72) if patch.light < 0 else (0.76, 1.02)

    front = patch.polygon([(left, 0), (split, 0), (split, eaves), (middle, ridge), (left, eaves)])
    side = patch.box(split, 0, right, eaves)
    run = right - split - 0.12
    slope = patch.polygon(
        [
            (middle, ridge + 0.03),
            (middle + run, ridge + 0.03),
            (right + 0.06, eaves - 0.04),
            (split + 0.02, eaves - 0.04),
        ]
    )
    chimney = patch.box(middle + run * 0.6, ridge - 0.1, middle + run * 0.6 + 0.09, ridge + 0.1)
    silhouette = np.minimum(np.minimum(front, side), np.minimum(slope, chimney))
    patch.paint(silhouette - max(0.014, 0.5 * patch.pixel), roof_colour * 0.35)

    patch.paint(chimney, rgb(150, 86, 70) * bricks(patch, rng, 0.06, 0.035)[..., None])
    footing = 1 - 0.22 * ramp(patch.y, 0.08, 0)
    patch.paint(front, wall * (texture * footing * front_light)[..., None])
    under_eaves = 1 - 0.4 * ramp(patch.y, eaves - 0.13, eaves - 0.02)
    patch.paint(side, wall * (texture * footing * side_light * under_eaves)[..., None])

    period = 0.062
    row = np.floor(patch.y / period)
    tiles = np.abs(np.sin(np.pi * (patch.x / 0.05 + 0.5 * np.mod(row, 2)))) * 0.5 + np.mod(patch.y / period, 1)
    weather = patch.noise(rng, 9, 3)
    tiled = 0.98 + 0.3 * (0.75 - tiles) * patch.detail(period) + 0.16 * weather
    patch.paint(slope, roof_colour * (tiled * (0.85 + 0.2 * side_light))[..., None])
    for start, end in [
        ((left - 0.05, eaves - 0.06), (middle, ridge + 0.02)),
        ((middle, ridge + 0.02), (split + 0.03, eaves - 0.05)),
    ]:
        patch.paint(patch.segment(start, end, 0.024), roof_colour * 0.7)

    door = jitter(rng, [rgb(122, 60, 40), rgb(52, 88, 112), rgb(60, 98, 70)][rng.integers(3)])
    patch.paint(patch.box(middle - 0.085, 0, middle + 0.085, 0.31), WHITE * 0.92 * front_light)
    patch.paint(patch.box(middle - 0.062, 0, middle + 0.062, 0.285), door * front_light)
    patch.paint(patch.circle(middle + 0.038, 0.14, 0.013), rgb(230, 200, 110))
    window_light = rng.random() < 0.3
    pane = (
        rgb(250, 214, 120)
        if window_light
        else mix(GLASS * 0.75, WHITE, 0.35 * ramp(patch.y + 0.4 * patch.x, 0.2, 0.5))
    )
    draw_window(patch, middle, 0.58, 0.065, 0.07, pane, front_light)
    for x in np.linspace(split, right, 5 if right - split > 0.72 else 4)[1:-1]:
        draw_window(patch, x, 0.26, 0.068, 0.09, pane, side_light)


def draw_window(patch, x, y, half_width, half_height, pane, light):
    """A framed window with a cross bar, centred at (x, y)."""
    frame = 0.018
    patch.paint(
        patch.box(x - half_width - frame, y - half_height - frame, x + half_width + frame, y + half_height + frame),
        WHITE * light,
    )
    patch.paint(patch.box(x - half_width, y - half_height, x + half_width, y + half_height), pane)
    bar = 0.009
    patch.paint(patch.box(x - bar, y - half_height, x + bar, y + half_height), WHITE * light, patch.detail(0.05))
    patch.paint(patch.box(x - half_width, y - bar, x + half_width, y + bar), WHITE * light, patch.detail(0.05))


def car_paint(patch, rng, bottom, top):
    """A random body colour, (h, w, 3), bright on top and with a band of reflected sky along the waist."""
    colour = jitter(rng, [*BRIGHT[:5], rgb(226, 228, 230), rgb(70, 74, 84), rgb(150, 158, 168)][rng.integers(8)])
    height = (patch.y - bottom) / (top - bottom)
    shaded = colour * (0.68 + 0.42 * np.clip(height, 0, 1))[..., None]
    return mix(shaded, WHITE, 0.45 * np.exp(-(((height - 0.52) / 0.06) ** 2)))


def draw_car_side(patch, rng):
    """A car seen from its side, nose to the right."""
    body_colour = car_paint(patch, rng, 0.15, 0.95)
    estate = rng.random() < 0.4
    tail = -0.98 if estate else -0.62
    roof = [(tail - 0.08, 0.52), (tail + 0.12, 0.93), (0.18, 0.95), (0.58, 0.54)]
    cabin = patch.polygon(roof) - 0.05
    lower = np.minimum(patch.box(-1.18, 0.17, 1.18, 0.6, 0.16), patch.box(-1.14, 0.17, 1.2, 0.42, 0.08))
    silhouette = np.minimum(cabin, lower)
    wheels = (-0.72, 0.74)
    for x in wheels:
        patch.paint(patch.circle(x, 0.2, 0.215), BLACK * 0.6)
    patch.paint_outlined(silhouette, body_colour, 0.03, 0.4)

    glass = patch.polygon([(tail + 0.06, 0.58), (tail + 0.19, 0.86), (0.13, 0.88), (0.43, 0.58)]) - 0.015
    glare = ramp(np.sin(patch.x * 5 + patch.y * 4), 0.2, 0.9)
    patch.paint(glass, mix(GLASS * 0.55, WHITE, 0.45 * glare))
    for x in (-0.2,) if not estate else (-0.2, -0.62):
        patch.paint(patch.box(x - 0.03, 0.5, x + 0.03, 0.93), body_colour * 0.9)
    patch.paint(patch.segment((-0.2, 0.56), (-0.22, 0.22), 0.008), BLACK, 0.6 * patch.detail(0.12))
    patch.paint(patch.box(-0.1, 0.5, 0.02, 0.525), BLACK, 0.8 * patch.detail(0.12))
    patch.paint(patch.box(-1.16, 0.17, 1.16, 0.235, 0.03), BLACK, 0.75)
    patch.paint(patch.ellipse(1.1, 0.44, 0.08, 0.055), rgb(255, 246, 205))
    patch.paint(patch.box(-1.2, 0.38, -1.1, 0.5, 0.02), rgb(200, 30, 30))
    for x in wheels:
        patch.paint(patch.circle(x, 0.2, 0.235), BLACK * 0.5)
        patch.paint(patch.circle(x, 0.2, 0.195), BLACK)
        spokes = 0.75 + 0.25 * np.cos(5 * np.arctan2(patch.y - 0.2, patch.x - x))
        patch.paint(patch.circle(x, 0.2, 0.115), STEEL * (1.1 * spokes)[..., None])


def draw_car_end(patch, rng):
    """A car on a road that runs away from the viewer: its tail, or its front when it comes closer."""
    comes_closer = rng.random() < 0.5
    body_colour = car_paint(patch, rng, 0.1, 1)
    for x in (-0.43, 0.43):
        patch.paint(patch.box(x - 0.11, 0, x + 0.11, 0.34, 0.04), BLACK * 0.7)
    cabin = patch.polygon([(-0.5, 0.52), (-0.36, 0.92), (0.36, 0.92), (0.5, 0.52)]) - 0.07
    lower = patch.box(-0.62, 0.13, 0.62, 0.64, 0.14)
    patch.paint_outlined(np.minimum(cabin, lower), body_colour, 0.03, 0.4)
    window = patch.polygon([(-0.43, 0.6), (-0.33, 0.88), (0.33, 0.88), (0.43, 0.6)]) - 0.02
    patch.paint(window, mix(GLASS * 0.5, WHITE, 0.5 * ramp(patch.y + 0.3 * patch.x, 0.68, 0.95)))
    patch.paint(patch.box(-0.62, 0.13, 0.62, 0.24, 0.05), BLACK, 0.8)
    if comes_closer:
        patch.paint(patch.box(-0.3, 0.3, 0.3, 0.43, 0.04), BLACK)
        patch.paint(patch.box(-0.3, 0.355, 0.3, 0.375), STEEL, patch.detail(0.06))
        for x in (-0.46, 0.46):
            patch.paint_outlined(patch.ellipse(x, 0.42, 0.115, 0.085), rgb(255, 247, 214), 0.02)
    else:
        patch.paint(patch.box(-0.19, 0.27, 0.19, 0.38), rgb(240, 236, 214))
        patch.paint(patch.box(-0.13, 0.305, 0.13, 0.345), BLACK, 0.7 * patch.detail(0.06))
        for x in (-0.48, 0.48):
            patch.paint_outlined(patch.box(x - 0.11, 0.36, x + 0.11, 0.52, 0.04), rgb(214, 34, 34), 0.02)
            patch.paint(patch.box(x - 0.06, 0.41, x + 0.02, 0.46, 0.02), rgb(255, 150, 120))


def draw_hull(patch, rng, colour, deck):
    """A boat's body from its waterline at 0 to `deck`, bow to the right."""
    points = [
        (-0.36, -0.02),
        (0.24, -0.02),
        (0.36, deck * 0.5),
        (0.46, deck + 0.03),
        (0, deck - 0.015),
        (-0.42, deck),
    ]
    hull = patch.polygon(points)
    planks = 1 + 0.1 * np.sign(np.sin(patch.y * 2 * np.pi / 0.045)) * patch.detail(0.045)
    shade = 0.72 + 0.4 * patch.y / deck + 0.25 * patch.light * patch.x
    patch.paint_outlined(hull, colour * np.clip(planks * shade, 0.4, 1.25)[..., None])
    trim = np.maximum(hull, np.abs(patch.y - deck * 0.72 - 0.03 * np.abs(patch.x)) - 0.016)
    patch.paint(trim, WHITE)
    patch.paint(np.maximum(hull, patch.y - 0.03), jitter(rng, rgb(120, 40, 36)))


def draw_sailing_boat(patch, rng):
    """A hull, a mast and two billowing sails with seams."""
    hull = jitter(rng, [WHITE * 0.95, *BRIGHT[:1], BRIGHT[4], BRIGHT[3], rgb(140, 92, 58)][rng.integers(5)])
    sail, second = [
        (WHITE, CREAM),
        (CREAM, BRIGHT[0]),
        (BRIGHT[0], WHITE),
        (BRIGHT[4], WHITE),
        (BRIGHT[1], CREAM),
    ][rng.integers(5)]
    patch.paint(patch.segment((0.02, 0.1), (0.02, 0.99), 0.012), WOOD)
    belly = 0.03 * np.sin(np.pi * np.clip((patch.y - 0.22) / 0.74, 0, 1))
    main = patch.polygon([(-0.01, 0.24), (-0.4, 0.26), (-0.01, 0.97)]) - belly
    main = np.maximum(main, patch.x + 0.005)
    fore = patch.polygon([(0.05, 0.25), (0.44, 0.2), (0.05, 0.86)]) - 0.7 * belly
    fore = np.maximum(fore, 0.045 - patch.x)
    seams = np.abs(np.mod((patch.y + 0.25 * patch.x) / 0.13, 1) - 0.5)
    light = 0.97 + 0.3 * patch.light * np.sin(patch.x * 4.5) - 0.14 * ramp(seams, 0.05, 0.02) * patch.detail(0.08)
    stripe = (np.mod(np.floor((patch.y - 0.04) / 0.17), 2) == 0) & (rng.random() < 0.5)
    patch.paint_outlined(main, mix(sail, second, stripe.astype(np.float32)) * light[..., None], darkness=0.55)
    patch.paint_outlined(fore, second * (light * 0.96)[..., None], darkness=0.55)
    draw_hull(patch, rng, hull, 0.17)


def draw_fishing_boat(patch, rng):
    """A tall hull with a wheelhouse and a striped funnel; as high as it is long."""
    colours = different_colours(rng, 2)
    patch.paint(patch.segment((0.2, 0.2), (0.2, 0.85), 0.011), WOOD)
    patch.paint(patch.segment((0.2, 0.84), (0.44, 0.28), 0.006), BLACK, 0.7)
    patch.paint_outlined(
        patch.box(-0.3, 0.25, 0.1, 0.58, 0.02), WHITE * (0.95 + 0.3 * patch.light * patch.x)[..., None]
    )
    patch.paint_outlined(patch.box(-0.34, 0.56, 0.14, 0.62, 0.02), colours[1])
    for x in (-0.2, -0.07, 0.05):
        patch.paint(patch.box(x - 0.045, 0.4, x + 0.035, 0.52), GLASS * 0.7)
    patch.paint_outlined(patch.box(-0.24, 0.62, -0.1, 0.83), colours[1])
    patch.paint(patch.box(-0.24, 0.69, -0.1, 0.76), WHITE)
    draw_hull(patch, rng, colours[0], 0.28)


def draw_flag(patch, rng):
    """A pole with a knob and a waving two- or three-coloured cloth."""
    first, second, third = different_colours(rng, 3)
    if rng.random() < 0.6:
        second = WHITE
    patch.paint_outlined(
        patch.segment((0, 0), (0, 0.97), 0.016),
        STEEL * (1.1 + 15 * patch.light * patch.x)[..., None],
        0.006,
        0.55,
    )
    patch.paint_outlined(patch.circle(0, 0.97, 0.028), rgb(230, 190, 80))
    phase = rng.uniform(0, 2 * np.pi)
    wave = 9 * patch.x + phase
    top = patch.y - 0.93 - 0.05 * np.minimum(patch.x / 0.2, 1) * np.sin(wave)
    length = 0.64
    cloth = np.maximum(np.maximum(top, -top - 0.4), np.maximum(0.012 - patch.x, patch.x - length)) * 0.95
    across, down = patch.x / length, -top / 0.4
    pattern = rng.integers(4)
    if pattern == 0:
        stripe = np.clip(np.floor(down * 3), 0, 2)
    elif pattern == 1:
        stripe = np.clip(np.floor(across * 3), 0, 2)
    elif pattern == 2:
        stripe = ((np.abs(down - 0.5) < 0.13) | (np.abs(across - 0.38) < 0.09)).astype(int)
    else:
        stripe = (np.hypot((across - 0.5) * 1.6, down - 0.5) < 0.28).astype(int)
    colour = np.stack([first, second, third])[stripe.astype(int)]
    folds = 0.95 + 0.24 * np.cos(wave + 0.6 * patch.light)
    patch.paint_outlined(cloth, colour * folds[..., None], 0.01)


def draw_ball(patch, rng):
    """A beach ball, football or basketball: a pattern on a turned sphere under a light."""
    silhouette = patch.circle(0, 0.5, 0.485)
    x = np.clip(patch.x / 0.485, -1, 1)
    y = np.clip((patch.y - 0.5) / 0.485, -1, 1)
    normal = np.stack([x, y, np.sqrt(np.clip(1 - x * x - y * y, 0, 1))], axis=-1)
    turned = normal @ np.linalg.qr(rng.standard_normal((3, 3)))[0].astype(np.float32)
    edge = 3 * patch.pixel
    pattern = rng.integers(3)
    if pattern == 0:
        colours = different_colours(rng, 3)
        panels = np.stack([colours[0], WHITE, colours[1], WHITE, colours[2], WHITE])
        sector = np.floor((np.arctan2(turned[..., 1], turned[..., 0]) / (2 * np.pi) + 0.5) * 6).astype(int) % 6
        colour = mix(panels[sector], WHITE, ramp(np.abs(turned[..., 2]), 0.93 - edge, 0.93 + edge))
    elif pattern == 1:
        golden = (1 + 5**0.5) / 2
        corners = [(0, a, b) for a in (-1, 1) for b in (-golden, golden)]
        corners = np.array(corners + [(b, c, a) for a, b, c in corners] + [(c, a, b) for a, b, c in corners])
        corners = (corners / np.hypot(1, golden)).astype(np.float32)
        # The two nearest corners of the icosahedron: patches around each, seams half-way between them.
        near = np.sort(turned @ corners.T, axis=-1)
        spots = ramp(near[..., -1], 0.925 - edge * 0.4, 0.925 + edge * 0.4)
        seams = 0.45 * ramp(near[..., -1] - near[..., -2], 0.05, 0.015) * patch.detail(0.15)
        colour = mix(WHITE, BLACK, np.maximum(spots, seams))
    else:
        seams = np.minimum(np.abs(turned[..., 0]), np.abs(turned[..., 1]))
        seams = np.minimum(seams, np.abs(np.abs(turned[..., 0]) - 0.62 - 0.2 * turned[..., 2] ** 2))
        leather = jitter(rng, rgb(226, 118, 44)) * (1 + 0.08 * patch.noise(rng, 40, 1))[..., None]
        colour = mix(leather, BLACK, ramp(seams, 0.05 + edge * 0.5, 0.02))
    lambert = normal @ np.array([0.5 * patch.light, 0.62, 0.6], np.float32)
    shaded = colour * (0.42 + 0.66 * np.clip(lambert, 0, 1))[..., None]
    patch.paint_outlined(silhouette, mix(shaded, WHITE, 0.6 * ramp(lambert, 0.93, 1)), 0.015, 0.3)


def draw_umbrella(patch, rng):
    """A beach umbrella of alternating panels with a scalloped rim."""
    first, second = different_colours(rng, 2)
    if rng.random() < 0.65:
        second = WHITE
    panels = rng.choice([5, 7])
    patch.paint_outlined(patch.segment((0, 0), (0, 0.96), 0.014), rgb(222, 206, 176), 0.006, 0.5)
    patch.paint(patch.circle(0, 0.97, 0.026), first)
    # Seen from outside, equal panels on a dome grow narrow towards its sides: the arc sine spaces them.
    half = 0.56 * np.sqrt(np.clip(1 - ((patch.y - 0.58) / 0.39) ** 2, 1e-3, 1))
    turn = np.arcsin(np.clip(patch.x / half, -1, 1)) / np.pi + 0.5
    scallop = 0.05 * np.abs(np.sin(np.pi * panels * turn))
    dome = np.maximum(patch.ellipse(0, 0.58, 0.56, 0.39), 0.55 + scallop - patch.y)
    number = np.clip(np.floor(turn * panels), 0, panels - 1)
    colour = mix(first, second, np.mod(number, 2))
    bulge = np.sin(np.pi * np.mod(turn * panels, 1))
    light = 0.78 + 0.2 * bulge + 0.35 * patch.light * patch.x + 0.3 * (patch.y - 0.6)
    patch.paint_outlined(dome, colour * light[..., None])


def draw_kite(patch, rng):
    """A four-coloured diamond with crossed spars and a tail with bows; flies with its base down."""
    colours = different_colours(rng, 4)
    phase = rng.uniform(0, 2 * np.pi)
    heights = np.linspace(0.36, 0, 9)
    swing = 0.07 * np.sin(phase + heights * 16) * (0.36 - heights) / 0.2
    swing -= swing[0]
    for i in range(8):
        patch.paint(patch.segment((swing[i], heights[i]), (swing[i + 1], heights[i + 1]), 0.012), colours[0] * 0.7)
    for i in (2, 4, 6, 8):
        x, y = swing[i], heights[i]
        for side in (-1, 1):
            bow = patch.polygon([(x, y), (x + 0.075 * side, y + 0.04), (x + 0.075 * side, y - 0.04)])
            patch.paint_outlined(bow, colours[i // 2 % 4], 0.006)
    cross = 0.72
    sail = patch.polygon([(0, 1), (0.31, cross), (0, 0.34), (-0.31, cross)])
    quarter = 2 * (patch.y > cross).astype(int) + (patch.x > 0)
    gleam = 0.92 + 0.5 * patch.light * patch.x + 0.08 * patch.noise(rng, 5, 2)
    patch.paint_outlined(sail, np.stack(colours)[quarter] * gleam[..., None])
    for start, end in [((0, 0.98), (0, 0.36)), ((-0.29, cross), (0.29, cross))]:
        patch.paint(patch.segment(start, end, 0.008), WOOD * 0.6, 0.85)


def draw_stop_sign(patch, rng):
    """A red octagon with a white border and lettering on a steel pole."""
    pole = STEEL * (0.95 + 12 * patch.light * patch.x)[..., None]
    patch.paint_outlined(patch.segment((0, 0), (0, 0.8), 0.02), pole, 0.008, 0.5)
    angles = np.pi / 8 + np.arange(8) * np.pi / 4
    centre, radius = 0.74, 0.275
    octagon = patch.polygon([(radius * np.cos(a), centre + radius * np.sin(a)) for a in angles])
    light = (0.96 + 0.25 * patch.light * patch.x + 0.2 * (patch.y - centre))[..., None]
    patch.paint_outlined(octagon, WHITE * light, 0.01)
    patch.paint(octagon + 0.026, jitter(rng, rgb(200, 32, 38)) * light)
    lettering = np.zeros((64, 160), np.uint8)
    cv2.putText(lettering, 'STOP', (10, 50), cv2.FONT_HERSHEY_SIMPLEX, 1.75, 255, 7, cv2.LINE_AA)
    column = (patch.sign * patch.x / 0.42 + 0.5) * 160  # readable on a mirrored sign too
    row = (0.5 - (patch.y - centre) / 0.17) * 64
    letters = cv2.remap(lettering, column, row, cv2.INTER_AREA, borderMode=cv2.BORDER_CONSTANT) / 255
    patch.paint(octagon + 0.03, WHITE * light, letters)


def draw_traffic_light(patch, rng):
    """A dark box with a red, an amber and a green lamp, one of them lit, on a pole."""
    patch.paint_outlined(patch.segment((0, 0), (0, 0.5), 0.024), BLACK * 1.6, 0.008)
    housing = jitter(rng, [rgb(50, 52, 58), rgb(60, 66, 52), rgb(216, 170, 48)][rng.integers(3)])
    patch.paint_outlined(
        patch.box(-0.14, 0.4, 0.14, 0.985, 0.045), housing * (1 + patch.light * patch.x)[..., None], 0.016
    )
    lit = rng.integers(3)
    lamps = (rgb(255, 60, 48), rgb(255, 190, 50), rgb(70, 240, 120))
    for i, lamp in enumerate(lamps):
        y = 0.88 - 0.187 * i
        disc = patch.circle(0, y, 0.074)
        patch.paint(disc - 0.016, BLACK * 0.6)
        if i == lit:
            patch.paint(disc, mix(lamp, WHITE, 0.75 * ramp(patch.circle(0, y, 0), 0.06, 0)))
            patch.paint(disc - 0.045, lamp, 0.3)
        else:
            patch.paint(disc, lamp * 0.32)
        patch.paint(np.maximum(disc - 0.024, y + 0.045 - patch.y), housing * 0.6)


def draw_hydrant(patch, rng):
    """A cast barrel with a domed cap and nozzles."""
    colour = jitter(rng, [rgb(206, 44, 38), rgb(232, 178, 44), rgb(206, 44, 38)][rng.integers(3)])
    accent = [WHITE, rgb(240, 200, 70), rgb(70, 120, 170)][rng.integers(3)]
    round_body = np.clip(1.02 - (np.abs(patch.x - 0.1 * patch.light) / 0.26) ** 2 * 0.6, 0.4, 1.1)[..., None]
    gleam = 0.3 * np.exp(-(((patch.x - 0.09 * patch.light) / 0.03) ** 2))
    body = mix(colour * round_body, WHITE, gleam)
    for x in (-0.26, 0.26):
        patch.paint_outlined(patch.box(x - 0.06, 0.47, x + 0.06, 0.63, 0.02), accent * 0.9, 0.016)
        patch.paint_outlined(patch.box(x * 0.85 - 0.05, 0.49, x * 0.85 + 0.05, 0.61), colour * 0.75, 0.01)
    patch.paint_outlined(patch.box(-0.18, 0.05, 0.18, 0.76), body, 0.016)
    dome = np.maximum(patch.ellipse(0, 0.77, 0.2, 0.19), 0.77 - patch.y)
    patch.paint_outlined(dome, mix(accent * round_body, WHITE, gleam), 0.016)
    patch.paint_outlined(patch.box(-0.05, 0.93, 0.05, 1, 0.01), accent * 0.8, 0.016)
    for bottom, top, half in ((0.74, 0.79, 0.24), (0.3, 0.34, 0.2), (0, 0.09, 0.26)):
        patch.paint_outlined(patch.box(-half, bottom, half, top, 0.015), body * 0.9, 0.016)
    patch.paint_outlined(patch.circle(0, 0.54, 0.105), accent * round_body, 0.016)
    patch.paint_outlined(patch.circle(0, 0.54, 0.04), colour * 0.7, 0.01)


def draw_surfboard(patch, rng):
    """A board that stands upright in the sand, with a stringer and a coloured design."""
    ground, first, second = CREAM, *different_colours(rng, 2)
    if rng.random() < 0.5:
        ground, first = first, WHITE
    t = np.linspace(0, np.pi, 17)
    right = [(0.165 * np.sin(a) ** 0.75 * (1 - 0.12 * np.cos(a)), 0.5 - 0.49 * np.cos(a)) for a in t]
    outline = right + [(-x, y) for x, y in right[-2:0:-1]]
    board = patch.polygon(outline)
    board = np.maximum(board, 0.02 - patch.y)  # the tail is in the sand
    light = np.clip(1 + patch.light * patch.x * 1.3, 0.7, 1.15)[..., None]
    patch.paint_outlined(board, ground * light)
    if rng.random() < 0.5:
        middle = rng.uniform(0.3, 0.7)
        bands = np.maximum(board + 0.012, np.abs(patch.y - middle) - 0.1)
        patch.paint(bands, first * light)
        patch.paint(np.maximum(bands, np.abs(patch.y - middle) - 0.05), second * light)
    else:
        patch.paint(np.maximum(board + 0.012, np.abs(np.abs(patch.x) - 0.07) - 0.022), first * light)
        patch.paint(np.maximum(board + 0.012, 0.78 - patch.y), second * light)
    patch.paint(np.maximum(board, np.abs(patch.x) - max(0.006, 0.3 * patch.pixel)), WOOD, 0.8)


@dataclass(frozen=True)
class Kind:
    """What there is to know about a kind of object.

    Attributes:
        draw (Callable): Paints it on a patch: `draw(patch, rng)`.
        extent (tuple[float]): Left, bottom, right, top in units of its height.
        height (float): Height over that of a tree at the same place, before variation.
        tilt (float): Standard deviation of its rotation in degrees.
        ade (str | None): Its class in ADE20K; None stays unlabelled.
        coco (str | None): Its category in COCO; None is background.
    """

    draw: Callable
    extent: tuple
    height: float
    tilt: float
    ade: str | None
    coco: str | None


KINDS = {
    'broadleaf': Kind(draw_broadleaf, (-0.5, -0.03, 0.5, 1.08), 1.0, 2, 'tree', None),
    'conifer': Kind(draw_conifer, (-0.45, -0.03, 0.45, 1.05), 1.1, 1, 'tree', None),
    'house': Kind(draw_house, (-0.7, -0.03, 0.75, 1.1), 0.85, 0, 'house', None),
    'car side': Kind(draw_car_side, (-1.3, -0.1, 1.3, 1.08), 0.36, 1, 'car', 'car'),
    'car end': Kind(draw_car_end, (-0.75, -0.1, 0.75, 1.1), 0.46, 0, 'car', 'car'),
    'sailing boat': Kind(draw_sailing_boat, (-0.55, -0.1, 0.6, 1.05), 0.95, 5, 'boat', 'boat'),
    'fishing boat': Kind(draw_fishing_boat, (-0.55, -0.1, 0.6, 1.0), 0.62, 3, 'boat', 'boat'),
    'flag': Kind(draw_flag, (-0.1, -0.05, 0.75, 1.1), 0.9, 2, 'flag', None),
    'ball': Kind(draw_ball, (-0.55, -0.05, 0.55, 1.05), 0.3, 0, 'ball', 'sports ball'),
    'umbrella': Kind(draw_umbrella, (-0.65, -0.05, 0.65, 1.05), 0.75, 11, None, 'umbrella'),
    'kite': Kind(draw_kite, (-0.4, -0.08, 0.4, 1.05), 0.6, 25, None, 'kite'),
    'stop sign': Kind(draw_stop_sign, (-0.35, -0.05, 0.35, 1.08), 0.75, 2, None, 'stop sign'),
    'traffic light': Kind(draw_traffic_light, (-0.25, -0.05, 0.25, 1.05), 0.85, 1, None, 'traffic light'),
    'hydrant': Kind(draw_hydrant, (-0.4, -0.05, 0.4, 1.05), 0.42, 1, None, 'fire hydrant'),
    'surfboard': Kind(draw_surfboard, (-0.25, -0.05, 0.25, 1.05), 0.8, 9, None, 'surfboard'),
}
