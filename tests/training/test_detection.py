"""Masks are drawn as mmengine draws them, and of their own pixels alone is anything computed."""

import numpy as np
from mmdet.visualization import DetLocalVisualizer

from bioattn_mm.training.detection import DetVisualizer


def test_masks_are_drawn_as_mmengine_draws_them() -> None:
    draw = np.random.default_rng(0)
    image = draw.integers(0, 256, (37, 61, 3), dtype=np.uint8)
    masks = np.zeros((4, 37, 61), bool)
    masks[0, 5:20, 3:50], masks[1, 15:37, 40:61], masks[2] = True, draw.random((22, 21)) < 0.5, False
    masks[3, 36, 0] = True
    colors = [(255, 0, 3), (20, 200, 90), (1, 2, 3), (0, 0, 255)]
    for alphas in (0.5, 0.8, [0.1, 0.9, 0.5, 1.0]):
        drawn = []
        for kind in (DetLocalVisualizer, DetVisualizer):
            visualizer = kind()
            visualizer.set_image(image)
            visualizer.draw_binary_masks(masks, colors, alphas)
            drawn.append(visualizer.get_image().astype(int))
        assert np.abs(drawn[0] - drawn[1]).max() <= 1
        assert (drawn[1] != image).any()
