"""Images as the analysis reads them."""

from pathlib import Path

import cv2
import mmpretrain.datasets  # noqa: F401
import numpy as np
import pytest
from mmengine.config import Config

import bioattn_mm.registry  # noqa: F401
from bioattn_mm.analysis.attention_segmentation import to_file
from bioattn_mm.analysis.images import ImageReader, find_images, stride_of
from bioattn_mm.runtime.images import shown


def reader_of(*steps: dict, size: tuple[int, int] | None = None) -> ImageReader:
    loader = dict(dataset=dict(data_root='', pipeline=[*steps, dict(type='PackInputs')]))
    return ImageReader(Config(dict(default_scope='mmpretrain', model={}, test_dataloader=loader)), size)


def test_the_whole_image_is_shown() -> None:
    """Though the pipeline of a classifier ends with the middle of what it has resized."""
    resize, crop = dict(type='ResizeEdge', scale=37, edge='short'), dict(type='CenterCrop', crop_size=(48, 32))
    steps = (dict(type='LoadImageFromFile'), resize, crop)
    ramp = np.broadcast_to(np.uint8(4 * np.arange(60))[:, None], (40, 60, 3))
    shown = reader_of(*steps)(ramp)
    assert shown.pixels.shape == (32, 48, 3)
    for column in (3, 20, 56):
        row, place = shown.input_pixel((20, column))
        assert abs(int(shown.pixels[row, place, 0]) - 4 * column) <= 4
    on_file = to_file(np.uint8([[0, 0, 1]] * 2), shown)
    assert on_file.shape == (40, 60) and np.array_equal(on_file[7], np.arange(60) >= 40)
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    assert np.array_equal(reader_of(*steps, size=(40, 60))(image).pixels, image[..., ::-1])


def test_images_of_four_channels(tmp_path: Path) -> None:
    """Three of them are shown, stretched where they have more than 8 bits."""
    image = np.random.default_rng(0).integers(20000, 20256, (40, 60, 4), np.uint16)
    np.save(tmp_path / 'image.npy', image)
    load = dict(type='bioattn_mm.LoadChannelsFromFile', channels=4, dtype='uint16')
    prepared = reader_of(load, dict(type='Resize', scale=(60, 40), keep_ratio=False))(tmp_path / 'image.npy')
    assert prepared.inputs.shape == (1, 4, 40, 60)
    assert np.array_equal(prepared.pixels, shown(image)[..., ::-1]) and np.ptp(prepared.pixels) > 200


def test_pictures_of_attacked_images(tmp_path: Path) -> None:
    """Of several channels of 8 bits, which are floats then: as bright as before."""
    image = np.random.default_rng(0).integers(100, 120, (40, 60, 4), np.uint8)
    np.save(tmp_path / 'image.npy', image)
    reader = reader_of(dict(type='bioattn_mm.LoadChannelsFromFile', channels=4, dtype='uint8'))
    prepared = reader(tmp_path / 'image.npy')
    pixels, sample = (prepared.batch[key][0] for key in ('inputs', 'data_samples'))
    assert np.array_equal(reader.prepared(None, pixels.float() + 0.1, sample).pixels, prepared.pixels)


def test_validation_images_of_imagenet(tmp_path: Path) -> None:
    """Of the folder of the split, not the first of all."""
    for split in ('test', 'train', 'val'):
        (tmp_path / split / 'n01440764').mkdir(parents=True)
        cv2.imwrite(str(tmp_path / split / 'n01440764' / f'{split}.png'), np.zeros((4, 4, 3), np.uint8))
    dataset = dict(type='ImageNet', data_root=str(tmp_path), split='val')
    config = Config(dict(val_dataloader=dict(dataset=dataset)))
    assert [path.name for path in find_images(config, None, 3)] == ['val.png']


def test_stride_of_any_grid() -> None:
    assert stride_of((3, 5), (48, 70)) == 16
    assert stride_of((7, 12), (98, 168)) == 14
    assert stride_of((6, 10), (98, 168)) == 16  # rounded down
    with pytest.raises(ValueError, match='no stride gives a grid'):
        stride_of((3, 9), (48, 64))
