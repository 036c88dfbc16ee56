"""Reading images and showing them: BGR in 8 bits, or any number of channels and any depth.

Images of a stated `ImageKind`, from PNG, TIFF and NumPy files, are not rounded to 8 bits, and their channels stay in
the order of the file, so that those of a PNG are R, G, B and alpha.
"""

import io
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import cv2
import numpy as np
from PIL import ExifTags, Image, ImageOps

from ..errors import InputError

DTYPES = ('uint8', 'uint16', 'float32')
MAX_CHANNELS = 512  # OpenCV resizes images of at most so many channels
NUMPY, PNG = b'\x93NUMPY', b'\x89PNG\r\n\x1a\n'
TIFF = (b'II*\0', b'MM\0*', b'II+\0', b'MM\0+')  # the last two are BigTIFF
# Channels by the colour type of a PNG: grey, RGB, palette, grey with alpha, RGB with alpha.
PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
# Channels of other files by Pillow's mode; else 3.
MODE_CHANNELS = {'1': 1, 'L': 1, 'RGBA': 4}
# Tags of TIFF, and Pillow's modes of files whose samples are not the channels that OpenCV makes of them, B, G and R.
BITS_PER_SAMPLE, SAMPLES_PER_PIXEL = 258, 277
CONVERTED = ('P', 'CMYK', 'YCbCr', 'LAB')
# Percentiles of the values of a channel: a drawing has what is darker in black, and what is brighter in white.
STRETCHED = (2, 98)
NUM_STRETCHED = 2**18  # the percentiles are those of so many pixels


@dataclass(frozen=True)
class ImageKind:
    """What all images of a model have in common.

    Attributes:
        channels: Number of channels.
        dtype: One of `DTYPES`.
    """

    channels: int
    dtype: str

    def __str__(self) -> str:
        return f'{self.channels} channel{"s" * (self.channels != 1)} of {self.dtype}'

    def check(self, image: np.ndarray, name: str) -> np.ndarray:
        """Return an image of this kind, (H, W, channels), of one channel also (H, W), or raise an `InputError`."""
        image = image[..., None] if image.ndim == 2 else image
        if image.ndim != 3 or image.size == 0:
            raise InputError(f'{name} is of shape {image.shape}, expected (height, width, {self.channels})')
        found = ImageKind(image.shape[2], image.dtype.name)
        if found != self:
            raise InputError(f'{name} has {found}, expected {self}')
        if self.dtype == 'float32':
            number = image.size - np.count_nonzero(np.isfinite(image))
            if number:
                raise InputError(f'{name} has {number} values that are NaN or infinite')
        return image


@dataclass(frozen=True)
class Header:
    """What the beginning of an image file says: the size (width, height) in pixels, and the kind."""

    size: tuple[int, int]
    kind: ImageKind


def read_header(path: str | Path) -> Header:
    """Read size, channels and dtype of an image file; of a missing or damaged file any exception may come."""
    with open(path, 'rb') as file:
        start = file.read(26)
        file.seek(0)
        if start.startswith(NUMPY):
            array = np.load(path, mmap_mode='r', allow_pickle=False)
            return _header(array.shape, array.dtype, path)
        if start.startswith(PNG):
            width, height, bits, colours = struct.unpack('>IIBB', start[16:])
            return _header((height, width, PNG_CHANNELS[colours]), 'uint16' if bits == 16 else 'uint8', path)
        is_tiff = start.startswith(TIFF)
        try:
            with Image.open(file) as image:
                channels = MODE_CHANNELS.get(image.mode, 3)
                if is_tiff:
                    bits, samples = (image.tag_v2.get(tag, 1) for tag in (BITS_PER_SAMPLE, SAMPLES_PER_PIXEL))
                    channels = 3 if image.mode in CONVERTED else samples
                if not is_tiff or ({*np.atleast_1d(bits)} == {8} and image.n_frames == 1):
                    return _header((*image.size[::-1], channels), 'uint8', path)
        except Exception as error:  # the TIFF is damaged, or Pillow does not know it
            if not is_tiff or isinstance(error, InputError):
                raise
        file.seek(0)
        with _tiff_pages(file, path) as (pages, are_rows):
            first = pages[0]
            shape = first.imagelength, first.imagewidth, sum(page.samplesperpixel for page in pages)
            return _header((shape[2], *shape[:2]) if are_rows else shape, first.dtype, path)


def decode(content: bytes, name: str) -> np.ndarray:
    """Decode a PNG, TIFF or .npy file, or what OpenCV reads, as it is: (H, W, channels) in the order of the file.

    An `InputError` names the file and says what is not read; of a damaged file any exception may come.
    """
    if content.startswith(NUMPY):
        image = np.load(io.BytesIO(content), allow_pickle=False)
    elif content.startswith(TIFF):
        image = _decode_tiff(content, name)
    else:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
        if image is None:
            raise ValueError('it cannot be decoded')
        image = np.atleast_3d(image)
        if image.shape[2] > 2:
            image = image[..., [2, 1, 0, 3][: image.shape[2]]]
        if content.startswith(PNG):
            channels = PNG_CHANNELS[content[25]]
            # OpenCV makes B, G, R and alpha of grey with alpha, and adds an alpha where a colour is transparent.
            image = image[..., [0, 3]] if channels == 2 else image[..., :channels]
    header = _header(image.shape, image.dtype, name)
    return np.ascontiguousarray(image.reshape(*image.shape[:2], -1), dtype=header.kind.dtype)


def read_image(path: str | Path, kind: ImageKind | None = None) -> np.ndarray:
    """Read an image file.

    Args:
        path: The file.
        kind: Channels and dtype that it must have; without one any image is made RGB in 8 bits and turned as its EXIF
            data say.

    Returns:
        (H, W, channels) of the kind, in the order of the file; without one BGR, uint8 (H, W, 3).

    Raises:
        InputError: The file is missing, cannot be decoded, or is of another kind.
    """
    with reading(path):
        content = Path(path).read_bytes()
        if kind is not None:
            return kind.check(decode(content, str(path)), str(path))
        image = turned_webp(content)
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR) if image is None else image
        if image is None:
            raise ValueError('it cannot be decoded')
        return image


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Context in which whatever goes wrong with an image file becomes an `InputError` that names it."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f'image not found: {path}') from error
    except Exception as error:  # OpenCV, Pillow, mmcv and tifffile raise errors of many kinds
        raise InputError(f'cannot decode the image {path}: damaged, too large, or not an image') from error


def turned_webp(content: bytes) -> np.ndarray | None:
    """A WebP image that its EXIF data turn, BGR, which OpenCV does not do in this format; None for any other."""
    if content[:4] != b'RIFF' or content[8:12] != b'WEBP':
        return None
    with Image.open(io.BytesIO(content)) as image:
        if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
            return None
        return np.ascontiguousarray(np.asarray(ImageOps.exif_transpose(image).convert('RGB'))[..., ::-1])


def check_array(image: np.ndarray, kind: ImageKind | None = None) -> np.ndarray:
    """Return an image that was given as an array; an `InputError` if it is not of a kind, or uint8 (H, W, 3)."""
    if kind is not None:
        return kind.check(image, 'the array')
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
        raise InputError(
            f'an image must be an array of uint8 and of shape (height, width, 3) in the order BGR, got '
            f'{image.dtype} {image.shape}'
        )
    return image


def as_input(image: np.ndarray) -> np.ndarray:
    """An image as it is resized and normalised: uint8, or float32, which holds every value of uint16."""
    return image.astype(np.float32) if image.dtype == np.uint16 else image


def shown(image: np.ndarray, channels: Sequence[int] | None = None) -> np.ndarray:
    """Three channels of an image, (H, W, channels), as a picture: BGR, uint8 (H, W, 3).

    Values of more than 8 bits are stretched, in each channel between the percentiles `STRETCHED`.

    Args:
        image: The image, finite.
        channels: The numbers of those that become red, green and blue, from 1. Default: the first three, of two
            channels the first and twice the second, and a single one three times.
    """
    number = image.shape[2]
    channels = channels or [min(channel, number) for channel in (1, 2, 3)]
    picked = image[..., [channel - 1 for channel in channels[::-1]]]
    if picked.dtype == np.uint8:
        return np.ascontiguousarray(picked)
    step = max(1, round((picked.shape[0] * picked.shape[1] / NUM_STRETCHED) ** 0.5))
    values = picked[::step, ::step].reshape(-1, 3).astype(np.float64)
    low, high = np.percentile(values, STRETCHED, axis=0)
    flat = low == high
    low, high = np.where(flat, values.min(0), low), np.where(flat, values.max(0), high)
    factors = 255 / np.where(high > low, high - low, 1)
    return np.clip((picked - low) * factors, 0, 255).astype(np.uint8)


def _header(shape: Sequence[int], dtype: object, name: object) -> Header:
    """The header of an image (H, W) or (H, W, channels); an `InputError` says that its kind is not read."""
    dtype = np.dtype(dtype)
    if len(shape) not in (2, 3) or 0 in shape:
        raise InputError(f'{name} is of shape {tuple(shape)}, expected (height, width, channels) or (height, width)')
    height, width, channels = (*shape, 1)[:3]
    if channels > min(height, width, MAX_CHANNELS):
        raise InputError(
            f'{name} has {height} rows, {width} columns and {channels} channels, expected fewer channels than rows '
            f'and columns, and at most {MAX_CHANNELS}: save (height, width, channels), in TIFF with planarconfig'
        )
    if dtype.name not in DTYPES:
        raise InputError(f'{name} is of {dtype.name}, expected {", ".join(DTYPES)}: save it in one of these')
    return Header((width, height), ImageKind(channels, dtype.name))


def _decode_tiff(content: bytes, name: str) -> np.ndarray:
    """The channels of all pages, one after the other."""
    with _tiff_pages(io.BytesIO(content), name) as (pages, are_rows):
        parts = []
        for page in pages:
            try:
                part = page.asarray()
            except ValueError as error:
                if 'imagecodecs' not in str(error):
                    raise
                raise InputError(
                    f'{name} is compressed by {page.compression.name}: pip install imagecodecs'
                ) from error
            # Planes of channels, depth, rows, columns, channels side by side.
            planes = part.reshape(page.shaped)[:, 0]
            parts.append(np.moveaxis(planes, 0, 2).reshape(*planes.shape[1:3], -1))
        image = np.concatenate(parts, axis=2)
        return np.moveaxis(image, 2, 0) if are_rows else image


@contextmanager
def _tiff_pages(file: BinaryIO, name: object) -> Iterator[tuple[list, bool]]:
    """Context with the pages of a TIFF file that hold channels: not the small copies that viewers draw.

    Yields:
        The pages, and whether each is a row of the image, (columns, channels): so tifffile writes an array (height,
        width, channels) of two or more than four channels that it was not told anything about.
    """
    try:
        import tifffile
    except ModuleNotFoundError as error:
        raise InputError(
            f'{name} is a TIFF of more than 8 bits, or of several channels, which needs tifffile: pip install '
            'tifffile imagecodecs'
        ) from error
    with tifffile.TiffFile(file) as tiff:
        pages = [page for page in tiff.pages if not page.is_reduced]
        kinds = {f'{page.imagewidth} x {page.imagelength} x {page.imagedepth} of {page.dtype}' for page in pages}
        if len(kinds) != 1 or pages[0].imagedepth > 1:
            found = ' and '.join(sorted(kinds)) or 'nothing'
            raise InputError(f'{name} has pages of {found}: expected a channel in each, of one size and dtype')
        width, height, number = pages[0].imagewidth, pages[0].imagelength, len(pages)
        yield (
            pages,
            tiff.is_shaped and tiff.series[0].shape == (number, height, width) and width < min(number, height),
        )
