"""Images of any number of channels and any depth, from PNG, TIFF and NumPy files: reading them and showing three.

Images of three channels in 8 bits that OpenCV reads are those of `images`; here nothing is rounded to 8 bits, and the
channels stay in the order of the file, so that those of a PNG are R, G, B and alpha.
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
from PIL import Image

from ..errors import InputError

DTYPES = ('uint8', 'uint16', 'float32')
MAX_CHANNELS = 512  # of an image that OpenCV resizes
NUMPY, PNG = b'\x93NUMPY', b'\x89PNG\r\n\x1a\n'
TIFF = (b'II*\0', b'MM\0*', b'II+\0', b'MM\0+')  # the last two are BigTIFF
# Channels by the colour type of a PNG: grey, RGB, palette, grey with alpha, RGB with alpha.
PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
# Channels of other files by Pillow's mode; else 3.
MODE_CHANNELS = {'1': 1, 'L': 1, 'RGBA': 4}
# Tags of TIFF, and Pillow's modes of files whose samples are not the channels that OpenCV makes of them, B, G and R.
BITS_PER_SAMPLE, SAMPLES_PER_PIXEL = 258, 277
CONVERTED = ('P', 'CMYK', 'YCbCr', 'LAB')
# Of the values of a channel, in per cent: what is darker becomes black in a drawing, and what is brighter white.
STRETCHED = (2, 98)
NUM_STRETCHED = 2**18  # pixels that are looked at for it


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
        """Return an image of this kind, (H, W, channels); of one channel it may also be given as (H, W).

        Args:
            image: The image.
            name: Its file, or what else it is, for the message.

        Raises:
            InputError: It is of another kind, has no pixels, or has values that are not finite.
        """
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
    """What the beginning of an image file says.

    Attributes:
        size: (width, height) in pixels.
        kind: Channels and dtype.
    """

    size: tuple[int, int]
    kind: ImageKind


def read_header(path: str | Path) -> Header:
    """Read size, channels and dtype of an image file.

    Raises:
        InputError: The image is of a kind that is not read, such as one of float64, or a package is missing.
        Exception: The file is missing or damaged; of many kinds.
    """
    with open(path, 'rb') as file:
        start = file.read(26)
        file.seek(0)
        if start.startswith(NUMPY):
            array = np.load(path, mmap_mode='r', allow_pickle=False)
            return _header(array.shape, array.dtype, path)
        if start.startswith(PNG):
            width, height, bits, colours = struct.unpack('>IIBB', start[16:])
            return _header((height, width, PNG_CHANNELS[colours]), 'uint16' if bits == 16 else 'uint8', path)
        if start.startswith(TIFF):
            return _tiff_in_8_bits(file, path) or _tiff_header(file, path)
        with Image.open(file) as image:
            return _header((*image.size[::-1], MODE_CHANNELS.get(image.mode, 3)), 'uint8', path)


def decode(content: bytes, name: str) -> np.ndarray:
    """Decode an image file: (H, W, channels) in the order of the file, with the values of the file.

    Args:
        content: Of a PNG, TIFF or .npy file, or of another type that OpenCV reads.
        name: The file, for messages.

    Raises:
        InputError: The image is of a kind that is not read, or a package is missing.
        Exception: The file is damaged; of many kinds.
    """
    if content.startswith(NUMPY):
        image = np.load(io.BytesIO(content), allow_pickle=False)
    elif content.startswith(TIFF):
        image = _decode_tiff(content, name)
    else:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
        if image is None:
            raise ValueError('it cannot be decoded')
        image = image[..., None] if image.ndim == 2 else image
        if image.shape[2] > 2:
            image = image[..., [2, 1, 0, 3][: image.shape[2]]]
        if content.startswith(PNG):
            channels = PNG_CHANNELS[content[25]]
            # OpenCV makes B, G, R and alpha of grey with alpha, and adds an alpha where a colour is transparent.
            image = image[..., [0, 3]] if channels == 2 else image[..., :channels]
    header = _header(image.shape, image.dtype, name)
    return np.ascontiguousarray(image.reshape(*image.shape[:2], -1), dtype=header.kind.dtype)


def read_channels(path: str | Path, kind: ImageKind) -> np.ndarray:
    """Read an image of a known kind, (H, W, channels).

    Raises:
        InputError: The file is missing, cannot be decoded, or is of another kind.
    """
    try:
        image = decode(Path(path).read_bytes(), str(path))
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f'image not found: {path}') from error
    except Exception as error:
        raise InputError(f'cannot decode the image {path}: damaged, or not an image') from error
    return kind.check(image, str(path))


def as_input(image: np.ndarray) -> np.ndarray:
    """An image as it is resized and normalised: uint8, or float32, which holds every value of uint16."""
    return image.astype(np.float32) if image.dtype == np.uint16 else image


def shown(image: np.ndarray, channels: Sequence[int] | None = None) -> np.ndarray:
    """Three channels of an image as a picture.

    Values of more than 8 bits are stretched, in each channel from its second percentile to the one before its last.

    Args:
        image: (H, W, channels), finite.
        channels: The numbers of those that become red, green and blue, the first being 1. Default: the first three,
            of two channels the first and twice the second, and a single one three times.

    Returns:
        BGR, uint8 (H, W, 3).
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
    """The header of an image (H, W) or (H, W, channels).

    Raises:
        InputError: It is of a kind that is not read.
    """
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


def _tiff_in_8_bits(file: BinaryIO, name: object) -> Header | None:
    """The header of a TIFF file of a single image in 8 bits that Pillow knows, which needs no tifffile; else None."""
    try:
        with Image.open(file) as image:
            bits, samples = (image.tag_v2.get(tag, 1) for tag in (BITS_PER_SAMPLE, SAMPLES_PER_PIXEL))
            is_simple = {*np.atleast_1d(bits)} == {8} and image.n_frames == 1
            channels = 3 if image.mode in CONVERTED else samples
            return _header((*image.size[::-1], channels), 'uint8', name) if is_simple else None
    except InputError:
        raise
    except Exception:  # Pillow does not know this kind, or the file is damaged, which tifffile says
        return None
    finally:
        file.seek(0)


def _tiff_header(file: BinaryIO, name: object) -> Header:
    with _tiff_pages(file, name) as (pages, are_rows):
        first = pages[0]
        shape = first.imagelength, first.imagewidth, sum(page.samplesperpixel for page in pages)
        return _header((shape[2], *shape[:2]) if are_rows else shape, first.dtype, name)


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

    Raises:
        InputError: They differ in size or dtype, are volumes, or tifffile is not installed.
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
        sizes = list(dict.fromkeys((page.imagewidth, page.imagelength) for page in pages))
        dtypes = list(dict.fromkeys(str(page.dtype) for page in pages))
        if len(sizes) > 1:
            several = ' and '.join(f'{width} x {height}' for width, height in sizes[:2])
            raise InputError(
                f'{name} has pages of different sizes, {several}: expected a channel in each, of one size'
            )
        if len(dtypes) > 1:
            raise InputError(f'{name} has pages of {" and ".join(dtypes[:2])}: expected one dtype')
        if not pages or any(page.imagedepth > 1 for page in pages):
            raise InputError(f'{name} holds volumes or nothing: expected images in two dimensions')
        (width, height), number = sizes[0], len(pages)
        yield (
            pages,
            tiff.is_shaped and tiff.series[0].shape == (number, height, width) and width < min(number, height),
        )
