"""Drawings of panoptic segments and of objects that are stated in another size than the picture's."""

import numpy as np
import pytest

from bioattn_mm.runtime import drawing
from bioattn_mm.runtime.drawing import WHITE, draw
from bioattn_mm.runtime.predictions import INSTANCE_OFFSET, Detections, Panoptic, Segmentation

CLASSES, PALETTE = ('', ''), [(10, 20, 30), (40, 50, 60)]  # without names, which would lie over pixels


def test_segments_of_a_class_are_told_apart() -> None:
    segments = np.full((30, 40), len(CLASSES))  # no segment
    segments[:, :10], segments[:, 10:20], segments[:10, 20:] = INSTANCE_OFFSET, 2 * INSTANCE_OFFSET, 1
    image = np.full((30, 40, 3), 99, np.uint8)
    drawn = draw(image, Panoptic(segments), CLASSES, PALETTE, 1.0)
    assert (drawn[:, :10] == (30, 20, 10)).all() and (drawn[:, 11:20] == (30, 20, 10)).all()
    assert (drawn[:10, 21:] == (60, 50, 40)).all() and (drawn[11:, 21:] == 99).all()
    assert (drawn[:, 10] == WHITE).all()
    assert (draw(image, Panoptic(segments), CLASSES, PALETTE, 0.0) == image).all()


def test_boxes_and_masks_of_another_size() -> None:
    masks = np.zeros((1, 60, 40), bool)
    masks[0, 20:40, 10:20] = True
    result = Detections(np.float32([[10, 20, 20, 40]]), np.float32([0.9]), np.array([1]), masks)
    drawn = draw(np.zeros((120, 80, 3), np.uint8), result, CLASSES, PALETTE, 1.0, (60, 40))
    # The score is written at the top.
    assert (drawn[60:80, 20:40] == (60, 50, 40)).all()
    assert not drawn[60:, :20].any() and not drawn[60:, 41:].any() and not drawn[81:].any() and not drawn[:40].any()


@pytest.mark.parametrize('most', [drawing.MAX_SOUGHT, 600])  # pixels among which a place is sought
def test_a_name_is_in_the_middle_of_its_region(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, 'MAX_SOUGHT', most)
    labels = np.ones((200, 300), int)
    labels[:, :100] = 0
    changed = draw(np.zeros((200, 300, 3), np.uint8), Segmentation(labels), ('', 'name'), PALETTE, 0.0).any(-1)
    rows, columns = np.nonzero(changed)
    assert abs(rows.mean() - 100) < 12 and abs(columns.mean() - 200) < 12
