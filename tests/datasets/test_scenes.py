"""The images themselves: sizes, labels and what is drawn."""

import numpy as np
import pytest

from bioattn_mm.datasets.mini.drawing import Canvas, Patch, noise
from bioattn_mm.datasets.mini.objects import KINDS
from bioattn_mm.datasets.mini.scenes import SURFACES, draw_scene

ALL_KINDS = dict.fromkeys(KINDS, 1)


def test_sizes_and_masks():
    for seed in range(12):
        scene = draw_scene(np.random.default_rng(seed), ALL_KINDS, crowd_chance=1)
        height, width = scene.surface.shape
        assert scene.image.shape == (height, width, 3) and scene.image.dtype == np.uint8
        assert 160 <= width <= 256 and 128 <= height <= 200
        assert scene.surface.max() < len(SURFACES)
        assert scene.instances
        # A pixel has at most one owner.
        assert np.sum([instance.mask for instance in scene.instances], axis=0).max() <= 1


def test_only_wanted_kinds():
    for seed in range(6):
        scene = draw_scene(np.random.default_rng(seed), {'ball': 1, 'car end': 1}, crowd_chance=0.5)
        assert {instance.kind for instance in scene.instances} <= {'ball', 'car end'}


def test_same_generator_same_scene():
    first, second = [draw_scene(np.random.default_rng(3), ALL_KINDS, 0.5) for _ in range(2)]
    np.testing.assert_array_equal(first.image, second.image)
    np.testing.assert_array_equal(first.surface, second.surface)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('size', [12, 90])
def test_every_kind_draws_within_its_extent(kind, size):
    canvas = Canvas(300, 400, light_side=1)
    left, _, right, _ = KINDS[kind].extent
    patch = Patch(canvas, 200, 200, size, KINDS[kind].extent)
    KINDS[kind].draw(patch, np.random.default_rng(0))
    canvas.stamp(patch, kind)
    (instance,) = canvas.instances
    rows, columns = np.nonzero(instance.mask)
    assert 0.6 * size < rows.max() - rows.min() <= 1.25 * size + 2
    # Nothing is cut off at the sides of the patch.
    assert columns.min() > 200 + left * size - 3 and columns.max() < 200 + right * size + 3
    assert patch.alpha[:, 0].max() < 0.5 and patch.alpha[:, -1].max() < 0.5
    assert np.isfinite(canvas.image).all()


def test_polygon_distance():
    canvas = Canvas(100, 100, light_side=1)
    patch = Patch(canvas, 50, 80, 50, (-1, -0.5, 1, 1.5))
    square = patch.polygon([(-0.5, 0), (0.5, 0), (0.5, 1), (-0.5, 1)])
    box = patch.box(-0.5, 0, 0.5, 1)
    np.testing.assert_allclose(square, box, atol=1e-5)


def test_noise_is_standardised():
    y, x = np.mgrid[:200, :200].astype(np.float32) / 5
    values = noise(np.random.default_rng(0), x, y, octaves=3)
    assert values.dtype == np.float32 and values.shape == x.shape
    assert abs(values.mean()) < 0.15 and 0.3 < values.std() < 0.7
