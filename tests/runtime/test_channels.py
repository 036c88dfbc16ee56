"""Reading images of any number of channels and any depth, showing them, and what the runtime makes of them."""

import sys
from functools import partial
from itertools import product, starmap
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from bioattn_mm.errors import InputError
from bioattn_mm.runtime.images import DTYPES, Header, ImageKind, check_array, decode, read_header, read_image, shown
from bioattn_mm.runtime.preprocessing import kind_of, prepare

from ..needs import needs

HEIGHT, WIDTH = 13, 17
TIFF = needs('tifffile')


def image_of(channels: int, dtype: str, size: tuple[int, int] = (HEIGHT, WIDTH)) -> np.ndarray:
    """Noise over the whole range of a dtype, so that no value can have been rounded to 8 bits and back."""
    most = dict(uint8=255, uint16=65535, float32=2.5)[dtype]
    return (np.random.default_rng(channels).random((*size, channels)) * most).astype(dtype)


def write_png(path: Path, image: np.ndarray) -> None:
    if image.shape[2] == 2:
        Image.fromarray(image, 'LA').save(path)
    else:
        cv2.imwrite(str(path), image[..., [2, 1, 0, 3][: image.shape[2]]] if image.shape[2] > 1 else image)


def write_tiff(path: Path, image: np.ndarray, layout: str) -> None:
    import tifffile

    if layout == 'as it comes':
        tifffile.imwrite(path, image)
    elif layout == 'contig':
        tifffile.imwrite(path, image, planarconfig='contig', photometric='minisblack')
    else:
        pages = np.ascontiguousarray(image.transpose(2, 0, 1))
        planar = dict(planarconfig='separate') if layout == 'separate' else {}
        tifffile.imwrite(path, pages, photometric='minisblack', **planar)


LAYOUTS = ('contig', 'separate', 'pages', 'as it comes')
WRITERS = {
    'npy': (np.save, (1, 2, 4, 7), DTYPES),
    'png': (write_png, (1, 3, 4), ('uint8', 'uint16')),
    'grey and alpha': (write_png, (2,), ('uint8',)),
    **{layout: (partial(write_tiff, layout=layout), (2, 3, 4, 7), DTYPES) for layout in LAYOUTS},
}


@pytest.mark.parametrize('name', [pytest.param(name, marks=TIFF if name in LAYOUTS else ()) for name in WRITERS])
def test_files_are_read_as_they_are(name: str, tmp_path: Path) -> None:
    write, numbers, dtypes = WRITERS[name]
    path = tmp_path / ('image.npy' if name == 'npy' else 'image.tif' if name in LAYOUTS else 'image.png')
    for kind in starmap(ImageKind, product(numbers, dtypes)):
        image = image_of(kind.channels, kind.dtype)
        write(path, image)
        assert read_header(path) == Header((WIDTH, HEIGHT), kind)
        read = read_image(path, kind)
        assert read.dtype == kind.dtype and np.array_equal(read, image)


@TIFF
def test_copies_for_viewers_and_other_byte_orders(tmp_path: Path) -> None:
    import tifffile

    path, image = tmp_path / 'image.tif', image_of(3, 'uint16')
    with tifffile.TiffWriter(path, byteorder='>') as file:
        file.write(image, photometric='rgb', compression='zlib')
        file.write(image[::2, ::2], photometric='rgb', subfiletype=1)
    np.save(tmp_path / 'image.npy', image.astype('>u2'))
    for each in (path, tmp_path / 'image.npy'):
        assert np.array_equal(read_image(each, ImageKind(3, 'uint16')), image)


def two_sizes(path: Path) -> None:
    import tifffile

    with tifffile.TiffWriter(path) as file:
        for rows in (HEIGHT, 9):
            file.write(image_of(1, 'uint16')[:rows, :, 0])


BAD_FILES = {
    'pages.tif': (two_sizes, 'has pages of 17 x 13 x 1 of uint16 and 17 x 9 x 1 of uint16: expected a channel in'),
    'double.npy': (np.zeros((13, 17, 2)), 'is of float64, expected uint8, uint16, float32: save it in one of these'),
    'first.npy': (np.zeros((4, 13, 17), 'u1'), 'has 4 rows, 13 columns and 17 channels, expected fewer channels'),
    'volume.npy': (np.zeros((3, 13, 17, 4), 'u1'), r'is of shape \(3, 13, 17, 4\), expected \(height, width'),
}


@pytest.mark.parametrize('name', [pytest.param(name, marks=TIFF if '.tif' in name else ()) for name in BAD_FILES])
def test_what_is_not_read(name: str, tmp_path: Path) -> None:
    content, message = BAD_FILES[name]
    content(tmp_path / name) if callable(content) else np.save(tmp_path / name, content)
    for read in (read_header, lambda path: decode(path.read_bytes(), str(path))):
        with pytest.raises(InputError, match=f'{name} {message}'):
            read(tmp_path / name)


def test_what_the_model_does_not_take(tmp_path: Path) -> None:
    path, image = tmp_path / 'image.npy', image_of(2, 'float32')
    image[3, 4, 1] = np.nan
    np.save(path, image)
    (tmp_path / 'cut.npy').write_bytes(path.read_bytes()[:200])
    for name, kind, message in (
        ('image', ImageKind(2, 'float32'), 'image.npy has 1 values that are NaN or infinite'),
        ('image', ImageKind(4, 'float32'), 'image.npy has 2 channels of float32, expected 4 channels of float32'),
        ('image', ImageKind(2, 'uint16'), 'image.npy has 2 channels of float32, expected 2 channels of uint16'),
        ('cut', ImageKind(2, 'float32'), 'cannot decode the image .*cut.npy: damaged'),
        ('none', ImageKind(2, 'float32'), 'image not found: .*none.npy'),
    ):
        with pytest.raises(InputError, match=message):
            read_image(tmp_path / f'{name}.npy', kind)
    for array in (np.zeros((40, 60)), np.zeros((40, 60, 3)), np.zeros((40, 60, 4), 'u1'), np.zeros((0, 9, 3), 'u1')):
        with pytest.raises(InputError, match=r'an image must be an array of uint8 and .*, got \w+ \([\d, ]+\)'):
            check_array(array)


@TIFF
def test_tifffile_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where Pillow does not do."""
    Image.fromarray(image_of(3, 'uint8')).save(tmp_path / 'rgb.tif')
    write_tiff(tmp_path / 'deep.tif', image_of(3, 'uint16'), 'contig')
    monkeypatch.setitem(sys.modules, 'tifffile', None)
    assert read_header(tmp_path / 'rgb.tif').kind == ImageKind(3, 'uint8')
    with pytest.raises(InputError, match='deep.tif .* needs tifffile: pip install tifffile imagecodecs'):
        read_header(tmp_path / 'deep.tif')


def test_three_channels_are_shown() -> None:
    eight = image_of(4, 'uint8')
    assert np.array_equal(shown(eight, (4, 2, 1)), eight[..., [0, 1, 3]])
    assert np.array_equal(shown(image_of(1, 'uint8')), np.repeat(image_of(1, 'uint8'), 3, axis=2))
    assert np.array_equal(shown(image_of(2, 'uint8')), image_of(2, 'uint8')[..., [1, 1, 0]])

    deep = image_of(2, 'uint16', (200, 150))
    picture = shown(deep, (2, 1, 1))
    low, high = np.percentile(deep[..., 1], (2, 98))
    expected = np.clip((deep[..., 1] - low) / (high - low), 0, 1) * 255
    assert picture.dtype == np.uint8 and np.abs(picture[..., 2] - expected).max() < 1.01
    # Hardly any pixel has another value than the rest, and all have the same.
    deep[..., 0] = 7
    assert not shown(deep)[..., 2].any()
    deep[0, 0, 0] = 9
    assert shown(deep)[0, 0, 2] == 255


@pytest.mark.parametrize('channels', [1, 5])
def test_the_runtime_normalises_channels(channels: int) -> None:
    """Each channel is resized by itself, in its own depth."""
    image = image_of(channels, 'uint16', (30, 41))
    mean, std = np.arange(channels) * 1e3 + 7, np.arange(channels) + 2.5
    steps = [
        dict(type='read', channels=channels, dtype='uint16'),
        dict(type='resize', scale=[64, 48], keep_ratio=False),
        dict(type='normalize', mean=mean.tolist(), std=std.tolist(), channels='as read'),
        dict(type='pad', divisor=32, value=0.0),
    ]
    assert kind_of(steps) == ImageKind(channels, 'uint16') and kind_of(steps[1:]) is None
    prepared = prepare(image, steps)
    assert prepared.size == (48, 64) and prepared.inputs.shape == (channels, 64, 64)
    for index in range(channels):
        resized = cv2.resize(image[..., index].astype(np.float64), (64, 48))
        expected = (resized - mean[index]) / std[index]
        assert np.allclose(prepared.inputs[index, :48], expected, rtol=1e-5, atol=1e-2)
    assert not prepared.inputs[:, 48:].any()
    with pytest.raises(InputError, match="pipeline.json has a step that cannot be done, {'type': 'read'}"):
        kind_of([dict(type='read')])


def test_one_size() -> None:
    """Images are resized to it as a whole, unless the steps crop to it, as a classifier's do."""
    image, steps = image_of(3, 'uint8', (53, 80)), [dict(type='resize_edge', edge='short', size=37)]
    assert prepare(image, steps, (32, 48)).inputs.shape == (3, 32, 48)
    steps.append(dict(type='center_crop', size=[32, 32]))
    assert prepare(image, steps, (32, 48)).inputs.shape == (3, 32, 48)
    assert (prepare(image, steps, (32, 32)).inputs == prepare(image, steps).inputs).all()
    method = dict(interpolation='bicubic', backend='pillow')
    expected = prepare(image, [dict(type='resize', scale=[48, 32], keep_ratio=False, **method)]).inputs
    for step in (dict(type='resize', scale=[96, 64], keep_ratio=True), dict(type='resize_edge', edge='long', size=9)):
        assert (prepare(image, [step | method], (32, 48)).inputs == expected).all()
