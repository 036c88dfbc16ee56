"""The size of an image, which its header says."""

from pathlib import Path

from PIL import Image

# Orientations in EXIF that swap width and height when an image is loaded.
ORIENTATION, SWAPPING = 0x0112, (5, 6, 7, 8)


def read_size(path: str | Path, decode: bool) -> tuple[int, int]:
    """Width and height of an image in pixels as it is loaded, turned as its EXIF says.

    Args:
        path: The file.
        decode: Whether to decode the image, which takes longer and finds damage beyond the header.

    Raises:
        Exception: It cannot be read.
    """
    with Image.open(path) as image:
        if decode:
            image.load()
        turned = image.getexif().get(ORIENTATION) in SWAPPING
        return image.size[::-1] if turned else image.size
