"""The drawn images and their labels."""

import numpy as np
import pytest

from bioattn_mm.data.mini import scenes
from bioattn_mm.data.mini.objects import KINDS
from bioattn_mm.data.mini.scenes import SURFACES, Scene, draw_object, draw_scene, noise, overlap

WEIGHTS = dict.fromkeys(KINDS, 1)


def empty_scene(light_side=1):
    return Scene('pasture', 300, 400, horizon=100, haze=np.ones(3, np.float32), light_side=light_side)


def test_sizes_and_masks():
    seen = set()
    for seed in range(12):
        scene = draw_scene(np.random.default_rng(seed), WEIGHTS)
        height, width = scene.surface.shape
        assert scene.image.shape == (height, width, 3) and scene.image.dtype == np.uint8
        assert scene.image.std() > 10
        assert 160 <= width <= 256 and 128 <= height <= 200
        assert scene.instances
        seen |= {SURFACES[i] for i in np.unique(scene.surface)}
        # A pixel belongs to at most one object.
        assert np.sum([instance.mask for instance in scene.instances], axis=0).max() <= 1
    assert seen == set(SURFACES)


def test_kinds_of_weight_zero_do_not_occur():
    weights = {kind: float(kind in ('beach ball', 'kite')) for kind in KINDS}
    for seed in range(6):
        scene = draw_scene(np.random.default_rng(seed), weights)
        singles = {instance.kind for instance in scene.instances if not instance.crowd}
        assert singles <= {'beach ball', 'kite'}


def test_crowds(monkeypatch):
    monkeypatch.setattr(scenes, 'CROWD_CHANCE', 1.0)
    drawn = [draw_scene(np.random.default_rng(seed), WEIGHTS) for seed in range(12)]
    crowds = [instance for scene in drawn for instance in scene.instances if instance.crowd]
    assert len(crowds) > 6
    assert all(KINDS[crowd.kind].crowds for crowd in crowds)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('size', [12, 90])
def test_every_kind_has_its_size_and_place(kind, size):
    scene = empty_scene()
    draw_object(scene, np.random.default_rng(0), kind, 200, 200, size)
    (instance,) = scene.instances
    rows, columns = np.nonzero(instance.mask)
    reach = 1.1 * np.hypot(KINDS[kind].half_width, 0.5) * size + 2
    assert 0.6 * size < rows.max() - rows.min() <= 2 * reach
    # It turns about its middle.
    assert np.hypot(rows - (200 - size / 2), columns - 200).max() <= reach
    assert np.isfinite(scene.image).all()


def test_objects_in_front_hide_those_behind():
    scene = empty_scene()
    for x in (200, 220):
        draw_object(scene, np.random.default_rng(0), 'football', x, 200, 60)
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


def test_overlap_of_boxes():
    large, small = np.array([[0, 0], [10, 10]]), np.array([[8, 8], [12, 12]])
    assert overlap(large, small) == overlap(small, large) == 4 / 16
    assert overlap(large, small + 20) == 0


def test_noise_has_mean_zero_and_unit_range():
    values = noise(np.random.default_rng(0), 200, 180, 40, 36)
    assert values.dtype == np.float32 and values.shape == (200, 180)
    assert abs(values.mean()) < 0.1 and 0.2 < values.std() < 0.7
