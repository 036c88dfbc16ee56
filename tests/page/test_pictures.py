"""Pictures and legends of the page, of predictions that are written out."""

import re
from types import SimpleNamespace

import numpy as np

from bioattn_mm.analysis.figures import draw_heat
from bioattn_mm.page import pictures
from bioattn_mm.runtime.predictions import INSTANCE_OFFSET, Detections, Panoptic, Result, Segmentation

SIZE = (40, 60)
PICTURE = np.full((533, 800, 3), 128, np.uint8)
MODEL = SimpleNamespace(classes=['road', 'a<b', 'sand'], palette=[[1, 2, 3], [40, 50, 60], [70, 80, 90]])
NOTHING = len(MODEL.classes)


def drawn(result: Result, opacity: float = 1.0) -> np.ndarray:
    return pictures.draw_prediction(PICTURE, result, SIZE, MODEL, opacity)


def legend_of(result: Result) -> list[str]:
    return re.findall('</span>(.*?)</span>', pictures.legend_of(result, MODEL))


def names_on(result: Result) -> list[tuple[str, str]]:
    """Outlines and what the pointer shows there, from the back to the front."""
    page = pictures.with_names(PICTURE, result, SIZE, MODEL.classes)
    return re.findall('<polygon points="(.*?)"><title>(.*?)</title>', page)


def test_classes_of_a_segmentor() -> None:
    labels = np.full(SIZE, NOTHING)
    labels[:, :15], labels[:, 15:45] = 0, 1
    result = Segmentation(labels)
    layer = drawn(result)
    assert (layer[:, :200] == [1, 2, 3]).all() and (layer[:, 200:600] == [40, 50, 60]).all()
    assert (layer[:, 600:] == PICTURE[:, 600:]).all()
    np.testing.assert_allclose(drawn(result, 0.5), (layer.astype(float) + PICTURE) / 2, atol=1)
    assert legend_of(result) == [name for _, name in names_on(result)] == ['a&lt;b 50.0 %', 'road 25.0 %']


def test_boxes_of_a_detector() -> None:
    """They have the names where there are no masks; the smallest lie on top."""
    boxes = np.float32([[15, 5, 30, 10], [0, 0, 60, 20]])
    result = Detections(boxes.copy(), np.float32([0.25, 0.5]), np.array([1, 0]))
    assert (drawn(result) != PICTURE).any() and (result.boxes == boxes).all()
    (_, largest), (outline, smallest) = names_on(result)
    assert (largest, smallest) == ('road 0.50', 'a&lt;b 0.25')
    x, y = np.array(outline.split(), float).reshape(-1, 2).T
    np.testing.assert_allclose((x.min(), y.min(), x.max(), y.max()), (200, 66.6, 400, 133.3), atol=2)
    result.labels[:] = 2
    assert legend_of(result) == ['sand 2']
    assert 'nothing found' in pictures.legend_of(result.keep(result.scores > 1), MODEL)


def test_segments_of_a_panoptic_model() -> None:
    """Two objects of a class, sand below at the right, and nothing above it."""
    segments = np.full(SIZE, NOTHING)
    segments[:, :15], segments[:, 15:30], segments[20:, 30:] = INSTANCE_OFFSET, 2 * INSTANCE_OFFSET, 2
    result = Panoptic(segments)
    changed = (drawn(result) != PICTURE).any(-1)
    assert changed[:, :390].mean() > 0.9 and changed[280:, 410:].mean() > 0.9 and changed[:250, 410:].mean() < 0.1
    assert legend_of(result) == ['road 2', 'sand 1']
    shares = sorted(name.removesuffix(' %').split() for _, name in names_on(result))
    assert [name for name, _ in shares] == ['road', 'road', 'sand']
    np.testing.assert_allclose([float(share) for _, share in shares], 25, atol=0.5)


def test_pixels_of_pictures() -> None:
    assert pictures.fitted_size((40, 60)) == (533, 800) and pictures.fitted_size((1, 5000)) == (1, 800)
    assert pictures.file_pixel((0, 799), (533, 800), (40, 60)) == (0, 59)
    assert pictures.file_pixel((266, 400), (533, 800), (40, 60)) == (20, 30)
    assert pictures.file_pixel((533, -1), (533, 800), (40, 60)) == (39, 0)
    assert pictures.file_pixel((10, 20), pictures.fitted_size((3000, 2000)), (3000, 2000)) == (39, 76)


def test_heat_and_marks() -> None:
    picture = np.full((200, 400, 3), 128, np.uint8)
    heat = np.zeros((5, 10))
    heat[2, 3] = 1
    drawn = draw_heat(picture, heat)
    assert (drawn[80:120, 120:160] == drawn[100, 140]).all() and (drawn[79, 119] == drawn[0, 0]).all()
    assert drawn[100, 140].sum() > 2 * drawn[0, 0].sum() > 0
    marked = pictures.mark(picture, (3, 2, 4, 3), (5, 10))
    changed = np.argwhere((marked != picture).any(-1))
    assert (changed.min(0) <= (80, 120)).all() and (changed.max(0) >= (120, 160)).all()
    assert (changed.min(0) >= (74, 114)).all() and (changed.max(0) <= (126, 166)).all()
    assert {tuple(color) for color in marked[tuple(changed.T)].tolist()} == {(0, 0, 0), pictures.MARK}
    crossed = np.argwhere((pictures.mark_pixel(picture, (2, 3), (5, 10)) != picture).any(-1))
    np.testing.assert_allclose(crossed.mean(0), (100, 140), atol=1)
    field = np.full((8, 8), 1e-9)
    field[:4, :4], field[4:, 4:] = 1.0, np.sqrt(1e-3)
    np.testing.assert_allclose(pictures.field_heat(field), [[1, 0], [0, 0.5]], atol=1e-6)
