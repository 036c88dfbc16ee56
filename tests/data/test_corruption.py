"""Corrupted images: every corruption at odd sizes, the same in every run."""

import numpy as np
import pytest
from imagecorruptions import corrupt, get_corruption_names
from mmengine.dataset import Compose

from bioattn_mm.data.corruption import Corrupt
from bioattn_mm.errors import InputError


def sample_image(height: int = 37, width: int = 83) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def corrupted(name: str, severity: int = 3, path: str = 'a/\udcfc.jpg', size: tuple = (37, 83)) -> np.ndarray:
    pipeline = Compose([dict(type='bioattn_mm.Corrupt', corruption=name, severity=severity)])
    return pipeline(dict(img=sample_image(*size), img_path=path))['img']


@pytest.mark.parametrize('name', get_corruption_names())
def test_every_corruption_is_the_same_in_every_run(name: str) -> None:
    for severity, size in ((1, (37, 45)), (5, (50, 32))):
        np.random.seed(severity)
        state = np.random.get_state()[1].copy()
        image = corrupted(name, severity, size=size)
        assert image.shape == (*size, 3) and image.dtype == np.uint8
        assert np.abs(image.astype(int) - sample_image(*size)).mean() > 1
        # Nobody else's random numbers change, nor are they used.
        assert (np.random.get_state()[1] == state).all()
        np.random.seed(7)
        assert (corrupted(name, severity, 'another folder/\udcfc.jpg', size) == image).all()
    if name in ('gaussian_noise', 'fog'):
        assert (corrupted(name, path='a/other.jpg') != corrupted(name)).any()


def test_the_package_gets_red_first() -> None:
    wanted = corrupt(sample_image()[..., ::-1], 3, 'jpeg_compression')[..., ::-1]
    assert (corrupted('jpeg_compression') == wanted).all()
    assert (corrupt(sample_image(), 3, 'jpeg_compression') != wanted).any()


def test_refuses() -> None:
    with pytest.raises(InputError, match="corruption must be one of gaussian_noise, .*, got 'rain'"):
        Corrupt('rain', 1)
    with pytest.raises(InputError, match='severity must be 1 to 5, got 6'):
        Corrupt('fog', 6)
    with pytest.raises(InputError, match='at least 32 pixels a side: .*was loaded as .40, 31, 3.'):
        corrupted('fog', size=(40, 31))
    fog = Corrupt('fog', 1)
    for image in (sample_image()[..., 0], sample_image().astype(np.float32), sample_image()[..., :1]):
        with pytest.raises(InputError, match=r'for colour images in 8 bits.*: a.jpg was loaded as \(37, 83'):
            fog.transform(dict(img=image, img_path='a.jpg'))
