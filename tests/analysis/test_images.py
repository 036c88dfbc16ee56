"""Images as the analysis reads them."""

import mmpretrain.datasets  # noqa: F401
import numpy as np
from mmengine.config import Config

import bioattn_mm.registry  # noqa: F401
from bioattn_mm.analysis.images import ImageReader


def test_a_size_is_that_of_the_whole_image() -> None:
    """Though the pipeline of a classifier ends with the middle of what it has resized."""
    pipeline = [
        dict(type='LoadImageFromFile'),
        dict(type='ResizeEdge', scale=37, edge='short'),
        dict(type='CenterCrop', crop_size=32),
        dict(type='PackInputs'),
    ]
    loader = dict(dataset=dict(data_root='', pipeline=pipeline))
    config = Config(dict(default_scope='mmpretrain', model={}, test_dataloader=loader))
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    assert ImageReader(config)(image).pixels.shape == (32, 32, 3)
    pixels = ImageReader(config, (40, 60))(image).pixels
    assert np.array_equal(pixels, image[..., ::-1])
