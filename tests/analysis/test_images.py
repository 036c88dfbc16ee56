"""Images as the analysis reads them."""

from pathlib import Path

import mmpretrain.datasets  # noqa: F401
import numpy as np
from mmengine.config import Config

import bioattn_mm.registry  # noqa: F401
from bioattn_mm.analysis.attention_segmentation import to_file
from bioattn_mm.analysis.images import ImageReader
from bioattn_mm.runtime.images import shown


def test_the_whole_image_is_shown() -> None:
    """Though the pipeline of a classifier ends with the middle of what it has resized."""
    pipeline = [
        dict(type='LoadImageFromFile'),
        dict(type='ResizeEdge', scale=37, edge='short'),
        dict(type='CenterCrop', crop_size=(48, 32)),
        dict(type='PackInputs'),
    ]
    loader = dict(dataset=dict(data_root='', pipeline=pipeline))
    config = Config(dict(default_scope='mmpretrain', model={}, test_dataloader=loader))
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    ramp = np.broadcast_to(np.uint8(4 * np.arange(60))[:, None], (40, 60, 3))
    shown = ImageReader(config)(ramp)
    assert shown.pixels.shape == (32, 48, 3)
    for column in (3, 20, 56):
        row, place = shown.input_pixel((20, column))
        assert abs(int(shown.pixels[row, place, 0]) - 4 * column) <= 4
    values = np.zeros((2, 3), np.uint8)
    values[:, 2] = 1
    on_file = to_file(values, shown)
    assert on_file.shape == (40, 60) and np.array_equal(on_file[7], np.arange(60) >= 40)
    pixels = ImageReader(config, (40, 60))(image).pixels
    assert np.array_equal(pixels, image[..., ::-1])


def test_images_of_four_channels(tmp_path: Path) -> None:
    """Three of them are shown, stretched where they have more than 8 bits."""
    image = np.random.default_rng(0).integers(20000, 20256, (40, 60, 4), np.uint16)
    np.save(tmp_path / 'image.npy', image)
    pipeline = [
        dict(type='bioattn_mm.LoadChannelsFromFile', channels=4, dtype='uint16'),
        dict(type='Resize', scale=(60, 40), keep_ratio=False),
        dict(type='PackInputs'),
    ]
    loader = dict(dataset=dict(data_root='', pipeline=pipeline))
    reader = ImageReader(Config(dict(default_scope='mmpretrain', model={}, test_dataloader=loader)))
    prepared = reader(tmp_path / 'image.npy')
    assert prepared.inputs.shape == (1, 4, 40, 60)
    assert np.array_equal(prepared.pixels, shown(image)[..., ::-1]) and np.ptp(prepared.pixels) > 200
