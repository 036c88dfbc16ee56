"""The objects of the miniature scenes: their shapes, their colours and what they are called in ADE20K and COCO."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

# Colours to choose from, hexadecimal RGB. An object has one colour of each name.
PALETTES = dict(
    first='d9483b e8823a f0b83e 3f9b6c 2f7fb5 7a5aa6 2aa0a4 dd6b8e',
    second='fbf6ea fbf6ea f6e3b4 fad9c8',
    third='24557a 8c2f39 f2c14e 2f6d62 d9643f',
    leaf='5d913f 76a147 4a8455 97a548 c98a3c',
    pine='2f6b4d 3c7a4a 2c5f58',
    wall='f2e4c6 e9d0a6 dfe5e4 e8c4ae c6755c',
    roof='ab5039 84473d 5f6878 82603f',
    **dict(wood='80593c', white='f7f4ec', steel='a3a9ae', dark='33353c', glass='7fa9bf'),
    **dict(red='d2352f', amber='f5b83d', green='4fc27a', shade='1d2430'),
)
OPACITY = {'shade': 0.22}  # all others are opaque


@dataclass
class Kind:
    """A kind of object.

    Its shapes are (key of `PALETTES`, points (x, y) of a polygon), each in front of those before it. The origin is
    the middle of the object's base, x points right, y up, and one unit is the object's height.
    """

    shapes: list[tuple]
    surfaces: tuple[str, ...]  # what it may stand on, of `scenes.SURFACES`
    height: float  # over that of a tree at the same place
    tilt: float  # standard deviation of its rotation in degrees
    ade: str | None = None  # its class in ADE20K; None: it is unlabelled
    coco: str | None = None  # in COCO; None: it is background
    imagenet: str | None = None  # in ImageNet; None: it is in no image of a single object
    frequency: float = 1.0  # among the kinds that a dataset labels; one of 0 is always alone in its image
    crowds: bool = False  # whether it comes in groups, too

    @cached_property
    def half_width(self) -> float:
        return max(abs(x) for _, points in self.shapes for x, _ in points)


def oval(x, y, radius_x, radius_y, start=0.0, end=2.0, corners=28):
    """An ellipse, or its part between two angles in units of pi; with few corners a regular polygon."""
    angles = np.linspace(start, end, corners, endpoint=end - start < 2) * np.pi
    return np.stack([x + radius_x * np.cos(angles), y + radius_y * np.sin(angles)], axis=1)


def disc(x, y, radius):
    return oval(x, y, radius, radius)


def box(left, bottom, right, top):
    return [(left, bottom), (right, bottom), (right, top), (left, top)]


def window(x, y):
    frame = box(x - 0.09, y - 0.095, x + 0.09, y + 0.095)
    return [('white', frame), ('glass', box(x - 0.07, y - 0.075, x + 0.07, y + 0.075))]


def waving(top, bottom):
    """A stripe of a flag."""
    x = np.linspace(0.02, 0.66, 14)
    edges = [np.stack([x, y + 0.035 * np.sin(10 * x)], axis=1) for y in (top, bottom)]
    return np.concatenate([edges[0], edges[1][::-1]])


def petal(angle):
    """A petal of a daisy, in a direction in radians."""
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return oval(0.19, 0, 0.11, 0.05) @ turn + (0, 0.7)


LAND = ('grass', 'field')
LEAVES = [(-0.2, 0.52), (0.2, 0.54), (0, 0.48), (-0.17, 0.7), (0.18, 0.72), (0, 0.82), (0.02, 0.64)]
SPOTS = np.pi * (0.3 + 0.4 * np.arange(5))  # angles

# fmt: off
KINDS = {
    'broadleaf': Kind([
        ('wood', [(-0.07, 0), (0.07, 0), (0.03, 0.5), (-0.03, 0.5)]),
        *[('leaf', oval(x, y, 0.2, 0.18)) for x, y in LEAVES],
    ], LAND, 1.0, 2, ade='tree'),
    'conifer': Kind([
        ('wood', box(-0.04, 0, 0.04, 0.2)),
        *[('pine', [(-half, y), (0, y + 0.04), (half, y), (0, y + 0.36)])
          for half, y in [(0.32, 0.12), (0.27, 0.28), (0.22, 0.44), (0.16, 0.62)]],
    ], LAND, 1.1, 1, ade='tree'),
    'house': Kind([
        ('roof', box(0.26, 0.7, 0.36, 0.98)),
        ('wall', [(-0.6, 0), (-0.12, 0), (-0.12, 0.5), (-0.36, 0.86), (-0.6, 0.5)]),
        ('wall', box(-0.12, 0, 0.6, 0.5)), ('shade', box(-0.12, 0, 0.6, 0.5)),
        ('roof', [(-0.66, 0.44), (-0.36, 0.9), (-0.3, 0.84), (-0.6, 0.42)]),
        ('roof', [(-0.36, 0.9), (0.44, 0.9), (0.68, 0.43), (-0.07, 0.43)]),
        ('third', box(-0.43, 0, -0.28, 0.3)),
        *window(-0.36, 0.55), *window(0.08, 0.24), *window(0.38, 0.24),
    ], LAND, 0.85, 0, ade='house', frequency=1.5),
    'car': Kind([
        ('first', [(-0.98, 0.5), (-0.72, 0.93), (-0.62, 0.98), (0.1, 0.98), (0.2, 0.94), (0.66, 0.52)]),
        ('glass', [(-0.8, 0.56), (-0.62, 0.88), (-0.28, 0.88), (-0.28, 0.56)]),
        ('glass', [(-0.2, 0.56), (-0.2, 0.88), (0.1, 0.88), (0.44, 0.56)]),
        ('first', [(-1.14, 0.2), (-1.2, 0.26), (-1.18, 0.5), (-1.06, 0.57), (0.66, 0.57), (1.08, 0.48), (1.2, 0.38),
                   (1.2, 0.2)]),
        ('dark', box(-1.14, 0.17, 1.16, 0.24)), ('amber', oval(1.12, 0.4, 0.07, 0.05)),
        ('red', box(-1.2, 0.38, -1.1, 0.48)),
        *[('dark', disc(x, 0.22, 0.23)) for x in (-0.72, 0.72)],
        *[('steel', disc(x, 0.22, 0.12)) for x in (-0.72, 0.72)],
    ], ('road',), 0.38, 1, ade='car', coco='car', imagenet='sports car', frequency=3),
    'boat': Kind([
        ('wood', box(-0.015, 0.1, 0.015, 1)),
        ('second', [(-0.02, 0.24), (-0.43, 0.27), (-0.36, 0.45), (-0.2, 0.74), (-0.02, 0.97)]),
        ('third', [(0.04, 0.24), (0.45, 0.25), (0.36, 0.4), (0.2, 0.64), (0.04, 0.88)]),
        ('first', [(-0.44, 0.2), (-0.34, 0), (0.28, 0), (0.5, 0.24), (0.2, 0.185), (-0.1, 0.18)]),
        ('white', [(-0.43, 0.16), (-0.42, 0.12), (0.41, 0.12), (0.45, 0.165)]),
    ], ('sea',), 0.9, 4, ade='boat', coco='boat', imagenet='yawl', frequency=3, crowds=True),
    'flag': Kind([
        ('steel', box(-0.02, 0, 0.02, 0.97)), ('amber', disc(0, 0.97, 0.03)),
        ('third', waving(0.93, 0.5)), ('second', waving(0.93, 0.64)), ('first', waving(0.93, 0.79)),
    ], (*LAND, 'sand'), 0.9, 2, ade='flag', imagenet='flagpole'),
    'beach ball': Kind([
        ('second', disc(0, 0.5, 0.5)), ('first', oval(0, 0.5, 0.35, 0.5)), ('second', oval(0, 0.5, 0.14, 0.5)),
        ('third', oval(0, 0.95, 0.16, 0.05)),
    ], (*LAND, 'sand'), 0.3, 40, ade='ball', coco='sports ball', crowds=True),
    'football': Kind([
        ('white', disc(0, 0.5, 0.5)), ('dark', oval(0, 0.5, 0.17, 0.17, 0.5, 2.5, corners=5)),
        *[('dark', disc(0.4 * np.cos(angle), 0.5 + 0.4 * np.sin(angle), 0.09)) for angle in SPOTS],
    ], (*LAND, 'sand'), 0.3, 40, ade='ball', coco='sports ball', imagenet='soccer ball'),
    'umbrella': Kind([
        ('wood', box(-0.02, 0, 0.02, 0.98)),
        *[(colour, oval(0, 0.56, half, 0.4, 0, 1))
          for half, colour in [(0.58, 'first'), (0.42, 'second'), (0.25, 'first'), (0.09, 'second')]],
    ], (*LAND, 'sand'), 0.75, 9, coco='umbrella', imagenet='umbrella', crowds=True),
    'kite': Kind([
        ('third', [(-0.02, 0.36), (0.02, 0.36), (0.1, 0.2), (-0.01, 0), (0.05, 0.2)]),
        ('third', [(-0.02, 0.26), (-0.02, 0.14), (0.16, 0.26), (0.16, 0.14)]),
        ('first', [(0, 1), (-0.3, 0.72), (0, 0.72)]), ('second', [(0, 1), (0.3, 0.72), (0, 0.72)]),
        ('third', [(-0.3, 0.72), (0, 0.34), (0, 0.72)]), ('first', [(0.3, 0.72), (0, 0.34), (0, 0.72)]),
    ], ('sky',), 0.6, 25, coco='kite', crowds=True),
    'stop sign': Kind([
        ('steel', box(-0.025, 0, 0.025, 0.6)),
        *[(colour, oval(0, 0.74, radius, radius, 0.125, 2.125, corners=8))
          for colour, radius in [('white', 0.28), ('red', 0.25)]],
        *[('white', box(x, 0.69, x + 0.07, 0.79)) for x in (-0.185, -0.085, 0.015, 0.115)],
    ], ('grass',), 0.75, 2, coco='stop sign', imagenet='street sign'),
    'traffic light': Kind([
        ('steel', box(-0.03, 0, 0.03, 0.5)), ('dark', box(-0.15, 0.4, 0.15, 1)),
        *[(colour, disc(0, y, 0.08)) for colour, y in [('red', 0.89), ('amber', 0.7), ('green', 0.51)]],
    ], ('grass',), 0.85, 1, coco='traffic light', imagenet='traffic light'),
    'hydrant': Kind([
        ('amber', box(-0.32, 0.46, 0.32, 0.64)), ('red', oval(0, 0.76, 0.2, 0.24, 0, 1)),
        ('red', box(-0.18, 0, 0.18, 0.74)), ('red', box(-0.26, 0, 0.26, 0.07)), ('red', box(-0.24, 0.71, 0.24, 0.78)),
        ('amber', disc(0, 0.54, 0.1)),
    ], ('grass',), 0.42, 1, coco='fire hydrant'),
    'surfboard': Kind([
        ('first', oval(0, 0.48, 0.17, 0.52)), ('second', oval(0, 0.48, 0.1, 0.46)),
        ('third', oval(0, 0.48, 0.035, 0.44)),
    ], ('sand',), 0.8, 8, coco='surfboard', frequency=1.5),
    'balloon': Kind([
        ('wood', box(-0.08, 0, 0.08, 0.11)),
        *[('dark', [(side * 0.07, 0.1), (side * 0.08, 0.1), (side * 0.13, 0.3), (side * 0.12, 0.3)])
          for side in (-1, 1)],
        *[(colour, [*oval(0, 0.64, half, 0.36, -0.1, 1.1), (-0.35 * half, 0.27), (0.35 * half, 0.27)])
          for half, colour in [(0.36, 'first'), (0.24, 'second'), (0.12, 'third')]],
    ], ('sky',), 0.6, 3, imagenet='balloon', frequency=0),
    'lighthouse': Kind([
        *[(colour, [(-half, low), (half, low), (half - 0.018, low + 0.15), (0.018 - half, low + 0.15)])
          for half, low, colour in [(0.17, 0, 'white'), (0.152, 0.15, 'first'), (0.134, 0.3, 'white'),
                                    (0.116, 0.45, 'first'), (0.098, 0.6, 'white')]],
        ('dark', box(-0.13, 0.74, 0.13, 0.77)), ('amber', box(-0.06, 0.77, 0.06, 0.88)),
        ('first', [(-0.1, 0.87), (0.1, 0.87), (0, 1)]), ('dark', box(-0.03, 0, 0.03, 0.09)),
    ], (*LAND, 'sand'), 1.0, 1, imagenet='beacon', frequency=0),
    'daisy': Kind([
        ('leaf', box(-0.02, 0, 0.02, 0.6)), ('leaf', oval(0.12, 0.2, 0.12, 0.05)),
        ('leaf', oval(-0.1, 0.32, 0.1, 0.04)),
        *[('white', petal(angle)) for angle in np.pi * np.arange(12) / 6],
        ('amber', disc(0, 0.7, 0.11)),
    ], LAND, 0.3, 8, imagenet='daisy', frequency=0),
}
# fmt: on
