"""The size of an image, which its header says."""

from pathlib import Path

from PIL import Image

from ..errors import InputError
from ..runtime.channels import ImageKind, read_channels, read_header

# Orientations in EXIF that swap width and height, and the formats of images that are turned when they are loaded.
ORIENTATION, SWAPPING = 0x0112, (5, 6, 7, 8)
TURNED = ('JPEG', 'MPO', 'PNG', 'TIFF', 'WEBP')
WIDTH, HEIGHT = 256, 257  # tags of TIFF


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
        turned = image.format in TURNED and image.getexif().get(ORIENTATION) in SWAPPING
        # Pillow turns the size of a TIFF itself, in some versions when the file is opened.
        size = (image.tag_v2[WIDTH], image.tag_v2[HEIGHT]) if image.format == 'TIFF' else image.size
        if decode:
            image.load()
        return size[::-1] if turned else size
