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
    """Area, middle and mean colour."""
    rows, columns = np.nonzero(mask)
    return [len(rows), columns.mean(), rows.mean(), *scene.image[mask].mean(0)]


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


def test_noise_has_mean_zero_and_unit_range():
    values = scenes.noise(np.random.default_rng(0), 200, 180, 40, 36)
    assert values.dtype == np.float32 and values.shape == (200, 180)
    assert abs(values.mean()) < 0.1 and 0.2 < values.std() < 0.7
    values = scenes.noise(FixedChance(0.5), 64, 64, 4, 4)
    np.testing.assert_allclose(values, values.T, atol=1e-5)  # rows and columns alike


# Each row is what `looks` finds: area, column, row, red, green and blue.
KIND_LOOKS = {
    'broadleaf': (1.016e04, 199.6, 111.4, 111.9, 146.7, 66.16),
    'conifer': (5964, 200.1, 136.5, 45.39, 94.3, 67.69),
    'house': (2.26e04, 198, 135.4, 160.1, 126.1, 109.3),
    'car': (3.346e04, 211.8, 129.8, 169.4, 147.2, 89.36),
    'boat': (1.096e04, 201.6, 143.7, 192.8, 152.9, 124.4),
    'flag': (7137, 157.5, 98.17, 189, 149.7, 114.2),
    'beach ball': (1.713e04, 200, 125, 232.1, 204.8, 151.9),
    'football': (1.712e04, 200, 125, 186.5, 184.9, 181.1),
    'umbrella': (8736, 198.2, 95.34, 221.4, 190.3, 125.5),
    'kite': (5056, 195.8, 106, 198.1, 140.4, 89.22),
    'stop sign': (5615, 199.6, 97.31, 206, 119.2, 114),
    'traffic light': (4658, 199.9, 104.9, 99.03, 90.62, 75.07),
    'hydrant': (9325, 200, 127.5, 207.4, 75.68, 47.61),
    'surfboard': (6203, 200.2, 128, 213.5, 169.5, 113.4),
    'balloon': (9478, 199.7, 109, 194.9, 146.4, 108.8),
    'lighthouse': (4979, 200.2, 138.8, 216.5, 190.9, 135.3),
    'daisy': (6143, 198.5, 108.1, 211.9, 208.9, 171.5),
}


@pytest.mark.parametrize('kind', KINDS)
def test_every_kind_is_drawn_as_ever(kind):
    scene = empty_scene()
    scenes.draw_object(scene, FixedChance(0.3), kind, 200, 200, 150)
    scene.image *= 255
    assert looks(scene, scene.instances[0].mask) == pytest.approx(KIND_LOOKS[kind], rel=0.002)


SURFACE_LOOKS = {
    ('pasture', 0.1, 'sky'): (5077, 84, 14.9, 117.8, 158.5, 187.8),
    ('pasture', 0.1, 'mountain'): (2528, 84, 36.26, 156.4, 173.8, 182.4),
    ('pasture', 0.1, 'grass'): (1.521e04, 84, 89.5, 97.35, 146.9, 64.66),
    ('farm', 0.1, 'grass'): (636, 40, 48.4, 131.8, 171.4, 114.4),
    ('farm', 0.1, 'field'): (1.457e04, 85.92, 91.29, 200.7, 161.6, 63.22),
    ('coast', 0.1, 'sea'): (5880, 77.48, 62.27, 53.63, 123.5, 151.6),
    ('coast', 0.1, 'sand'): (9330, 88.11, 106.7, 198.2, 181.1, 140.8),
    ('street', 0.1, 'grass'): (1.142e04, 84, 89.17, 99.02, 147.7, 67.57),
    ('street', 0.1, 'road'): (3788, 84, 90.5, 117.4, 118.4, 118.3),
    ('pasture', 0.8, 'sky'): (2.038e04, 118, 42.5, 182.6, 198.3, 200.2),
    ('pasture', 0.8, 'grass'): (2.37e04, 118, 135.5, 147, 169.3, 83.03),
    ('farm', 0.8, 'grass'): (4022, 131.2, 94.45, 180, 191.6, 114.6),
    ('farm', 0.8, 'field'): (1.968e04, 115.3, 143.9, 172.1, 116.4, 73.1),
    ('coast', 0.8, 'sea'): (1.326e04, 122, 113.6, 68.59, 120, 151.6),
    ('coast', 0.8, 'sand'): (1.044e04, 112.9, 163.3, 218.6, 198.1, 162.9),
    ('street', 0.8, 'grass'): (1.612e04, 118, 125.2, 152.2, 173.6, 87.57),
    ('street', 0.8, 'road'): (7584, 118, 157.5, 111.4, 109.7, 108.2),
}


@pytest.mark.parametrize(('name', 'share', 'surface'), SURFACE_LOOKS)
def test_every_scene_is_drawn_as_ever(name, share, surface):
    scene, light = scenes.draw_background(FixedChance(share), [name])
    scenes.developed(scene, FixedChance(share), light)
    found = looks(scene, scene.surface == SURFACES.index(surface))
    assert found == pytest.approx(SURFACE_LOOKS[name, share, surface], rel=0.002)


def test_a_single_object_fills_much_of_its_image():
    scene = scenes.draw_single(FixedChance(0.8), 'flag')
    assert looks(scene, scene.instances[0].mask) == pytest.approx((6726, 185.9, 76.1, 162.5, 153.9, 133.2), rel=0.01)


@pytest.mark.parametrize(
    ('kind', 'share', 'place'),
    [
        ('kite', 0.1, (49.6, 49.5, 33)),
        ('kite', 0.8, (312.8, 81, 54)),
        ('house', 0.1, (49.6, 124.8, 47.8)),
        ('hydrant', 0.8, (312.8, 256.4, 80.5)),
    ],
)
def test_near_objects_are_large(kind, share, place):
    assert scenes.propose(empty_scene(), FixedChance(share), kind) == pytest.approx(place, rel=0.01)
