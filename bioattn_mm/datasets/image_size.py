"""The size of an image, which its header says."""

from pathlib import Path

from PIL import Image

from ..errors import InputError
from ..runtime.channels import ImageKind, read_channels, read_header

# Orientations in EXIF that swap width and height when an image is loaded.
ORIENTATION, SWAPPING = 0x0112, (5, 6, 7, 8)


def read_size(path: str | Path, decode: bool, kind: ImageKind | None = None) -> tuple[int, int]:
    """Width and height of an image in pixels as it is loaded, turned as its EXIF says.

    Args:
        path: The file.
        decode: Whether to decode the image, which takes longer and finds damage beyond the header.
        kind: Channels and dtype that it must have; None: it is loaded as RGB in 8 bits.

    Raises:
        Exception: It cannot be read, or is of another kind.
    """
    if kind is not None:
        header = read_header(path)
        if header.kind != kind:
            raise InputError(f'{header.kind}, expected {kind}')
        if decode:
            read_channels(path, kind)
        return header.size
    with Image.open(path) as image:
        if decode:
            image.load()
        turned = image.getexif().get(ORIENTATION) in SWAPPING
        return image.size[::-1] if turned else image.size
