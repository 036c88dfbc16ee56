"""The drawn images and their labels: with chance, and with a generator in its place that always answers the same."""

import numpy as np
import pytest

from bioattn_mm.data.mini import scenes
from bioattn_mm.data.mini.objects import KINDS
from bioattn_mm.data.mini.scenes import SURFACES

WEIGHTS = dict.fromkeys(KINDS, 1)


class FixedChance:
    """Stands for a random generator whose streams numpy may change: a share of each range, and chequered noise."""

    def __init__(self, share):
        self.share = share

    def uniform(self, low, high, size=()):
        return np.full(size, low + self.share * (high - low))[()]

    def integers(self, low, high):
        return int(self.uniform(low, high))

    def random(self):
        return self.share

    def choice(self, options, p=None):
        return options[int(self.share * len(options))]

    def normal(self, mean, deviation, size=()):
        return np.full(size, mean + (2 * self.share - 1) * deviation)[()]

    def standard_normal(self, shape, dtype):
        return (np.indices(shape).sum(0) % 2 * 2 - 1).astype(dtype)


def looks(scene, mask):
    """Area and place in one number, the mean colour in two, and the mean difference of neighbouring pixels."""
    rows, columns = np.nonzero(mask)
    colour = (scene.image[mask] @ [[1, 3], [2, 1], [3, -1]]).mean(0)
    texture = np.abs(np.diff(scene.image.sum(-1, dtype=float), axis=1))[mask[:, 1:]].mean()
    return [(1 + columns / 100 + rows / 50).sum(), *colour, texture]


def empty_scene(light_side=1):
    return scenes.Scene('pasture', 300, 400, horizon=100, haze=np.ones(3, np.float32), light_side=light_side)


def test_sizes_and_masks():
    seen = set()
    for seed in range(12):
        scene = scenes.draw_scene(np.random.default_rng(seed), WEIGHTS)
        height, width = scene.surface.shape
        assert scene.image.shape == (height, width, 3) and scene.image.dtype == np.uint8
        assert scene.image.std() > 10
        assert 160 <= width <= 256 and 128 <= height <= 200
        assert scene.instances
        seen |= {SURFACES[i] for i in np.unique(scene.surface)}
        # A pixel belongs to at most one object.
        assert np.sum([instance.mask for instance in scene.instances], axis=0).max() <= 1
    assert seen == set(SURFACES)


def test_kinds_and_crowds(monkeypatch):
    """Singles are of kinds whose weight is above zero, and crowds of those that gather."""
    monkeypatch.setattr(scenes, 'CROWD_CHANCE', 1.0)
    weights = {kind: float(kind in ('beach ball', 'kite')) for kind in KINDS}
    drawn = [scenes.draw_scene(np.random.default_rng(seed), weights) for seed in range(12)]
    instances = [instance for scene in drawn for instance in scene.instances]
    assert {instance.kind for instance in instances if not instance.crowd} == {'beach ball', 'kite'}
    crowds = [instance for instance in instances if instance.crowd]
    assert len(crowds) > 6
    assert {crowd.kind for crowd in crowds} == {'beach ball', 'kite', 'umbrella'}


def test_objects_in_front_hide_those_behind():
    scene = empty_scene()
    for x in (200, 220):
        scenes.draw_object(scene, np.random.default_rng(0), 'football', x, 200, 60)
    behind, front = [instance.mask for instance in scene.instances]
    assert front.sum() > 1.3 * behind.sum()
    assert not (behind & front).any()


@pytest.mark.parametrize('light_side', [-1, 1])
def test_a_polygon_covers_its_pixels_and_is_lit_from_one_side(light_side):
    scene = empty_scene(light_side)
    square = np.array([(10, 20), (49, 20), (49, 79), (10, 79)], float)
    covered = scene.draw(square, np.full(3, 0.5, np.float32))
    rows, columns = np.nonzero(covered)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (20, 79, 10, 49)
    assert covered.sum() == 60 * 40
    left, right = scene.image[50, 12, 0], scene.image[50, 47, 0]
    assert (right > left) == (light_side == 1)
    assert scene.image[22, 30, 0] > scene.image[77, 30, 0] > 0
    scene.image[18:82, 8:52] = 0  # with its anti-aliased border
    assert not scene.image.any()
    outside = scene.draw(square - 500, np.ones(3, np.float32))
    assert not outside.any()
    scenes.draw_object(scene, FixedChance(0.5), 'house', 200, 200, 150)
    shadow = scene.image.any(-1) & ~scene.instances[0].mask
    assert (200 - shadow.nonzero()[1].mean()) * light_side > 20


def test_overlap_of_boxes():
    large, small = np.array([[0, 0], [10, 10]]), np.array([[8, 8], [12, 12]])
    assert scenes.overlap(large, small) == scenes.overlap(small, large) == 4 / 16
    assert scenes.overlap(large, small + 20) == 0


KIND_LOOKS = {
    'broadleaf': (53045, 2.3677, 1.6327), 'conifer': (34175, 1.714, 0.6384), 'house': (1.2856e+05, 2.9025, 1.9489),
    'car': (1.9116e+05, 2.8701, 2.2196), 'boat': (64526, 3.4189, 2.3792), 'flag': (32389, 3.2594, 2.3625),
    'beach ball': (94186, 4.3036, 2.9386), 'football': (94167, 4.3117, 2.2087), 'umbrella': (42708, 3.8372, 2.8587),
    'kite': (25678, 2.9272, 2.5309), 'stop sign': (27751, 3.084, 2.4436), 'traffic light': (23745, 1.9823, 1.226),
    'hydrant': (51743, 1.9671, 2.5505), 'surfboard': (34502, 3.5015, 2.7322), 'balloon': (49068, 3.193, 2.4404),
    'lighthouse': (28769, 3.9377, 2.7651), 'daisy': (31617, 4.4875, 2.6391),
}  # fmt: skip


@pytest.mark.parametrize('kind', KINDS)
def test_every_kind_is_drawn_as_ever(kind):
    scene = empty_scene()
    scenes.draw_object(scene, FixedChance(0.3), kind, 200, 200, 150)
    assert looks(scene, scene.instances[0].mask)[:3] == pytest.approx(KIND_LOOKS[kind], rel=0.001)


SCENE_LOOKS = {
    ('pasture', 0.1): dict(sky=(10855, 998.26, 324.09, 2.8615), grass=(55212, 585.07, 374.26, 27.653)),
    ('farm', 0.1): dict(
        mountain=(6484.8, 1051.2, 460.46, 3.14), grass=(1506, 817.85, 452.39, 20.533),
        field=(53706, 713.55, 700.38, 27.068)),
    ('coast', 0.1): dict(sea=(17758, 755.58, 132.82, 4.0093), sand=(37454, 982.58, 634.91, 14.088)),
    ('street', 0.1): dict(grass=(41386, 597.05, 377.15, 27.374), road=(13826, 709.29, 352.3, 15.365)),
    ('pasture', 0.8): dict(sky=(61757, 1179.8, 546.04, 0.50907), grass=(1.1589e+05, 734.79, 527.35, 29.583)),
    ('farm', 0.8): dict(grass=(16896, 906.97, 616.89, 23.33), field=(98997, 624.3, 559.78, 18.625)),
    ('coast', 0.8): dict(sea=(59593, 763.42, 174.09, 2.9786), sand=(56300, 1103.6, 691, 12.16)),
    ('street', 0.8): dict(grass=(75475, 762.01, 542.52, 28.736), road=(40418, 655.21, 335.65, 12.553)),
}  # fmt: skip


@pytest.mark.parametrize(('name', 'share'), SCENE_LOOKS)
def test_every_scene_is_drawn_as_ever(name, share):
    scene, light = scenes.draw_background(FixedChance(share), [name])
    scenes.developed(scene, FixedChance(share), light)
    for surface, expected in SCENE_LOOKS[name, share].items():
        found = looks(scene, scene.surface == SURFACES.index(surface))
        assert found == pytest.approx(expected, rel=0.001)


def test_a_single_object_fills_much_of_its_image():
    scene = scenes.draw_single(FixedChance(0.8), 'flag')
    assert looks(scene, scene.instances[0].mask) == pytest.approx((29469, 869.75, 508.22, 8.0138), rel=0.001)


PLACES = {
    ('kite', 0.1): (49.6, 49.5, 33), ('kite', 0.8): (312.8, 81, 54), ('house', 0.1): (49.6, 124.8, 47.8),
    ('hydrant', 0.8): (312.8, 256.4, 80.5),
}  # fmt: skip


@pytest.mark.parametrize(('kind', 'share'), PLACES)
def test_near_objects_are_large(kind, share):
    assert scenes.propose(empty_scene(), FixedChance(share), kind) == pytest.approx(PLACES[kind, share], rel=0.01)
