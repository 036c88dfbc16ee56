"""Many files of images: which of them are read, in threads, and whether their sizes are those that are stated."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

from ..errors import InputError, first_line
from ..runtime.files import other_spelling
from ..runtime.images import ImageKind, read_header, read_image
from .checks import Problem

# NumPy, OpenCV and Pillow release the GIL only for a part of the time: more threads would wait for it.
MAX_THREADS = 4
PORTION = 128  # results that may wait for the caller
# An error that at least this share of the entries have is named as a rule of all and not as a slip.
MOSTLY = 2 / 3

Size = tuple[int, int]  # width and height in pixels
Track = Callable[[Iterable, str, int], Iterable]


def spread(number: int, maximum: int | None) -> list[int]:
    """At most `maximum` of the indices below `number`, evenly spread; None for all."""
    if maximum is None or number <= maximum:
        return list(range(number))
    return np.linspace(0, number - 1, maximum).astype(int).tolist()


def in_threads(function: Callable, items: Sequence) -> Iterator:
    """The results of a function for some items, in their order, computed in threads a portion at a time."""
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        for start in range(0, len(items), PORTION):
            yield from pool.map(function, items[start : start + PORTION])


def read_size(path: str | Path, decode: bool = False, kind: ImageKind | None = None) -> Size:
    """Width and height of an image in pixels as it is loaded, turned as its EXIF says; errors are of any kind.

    Decoding takes longer and finds damage beyond the header. `kind` are the channels and the dtype that it must have;
    None: it is loaded as RGB in 8 bits.
    """
    if kind is not None:
        header = read_header(path)
        if header.kind != kind:
            raise InputError(f'{header.kind}, expected {kind}')
        if decode:
            read_image(path, kind)
        return header.size
    with Image.open(path) as image:
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) > 4
        size = image.size
        if image.format == 'TIFF':  # Pillow turns the size of these itself, some versions when they open the file
            size = image.tag_v2[ExifTags.Base.ImageWidth], image.tag_v2[ExifTags.Base.ImageLength]
        if decode:
            image.load()
        return size[::-1] if turned else size


def attempt(function: Callable, path: str, what: str) -> object:
    """What a function reads from a file, or the problem that the file, called `what`, is missing or unreadable."""
    try:
        return function(path)
    except FileNotFoundError:
        return Problem(f'{what} missing', str(path), other_spelling(Path(path)))
    except Exception as error:  # damaged files raise errors of many kinds
        return Problem(f'{what} unreadable', str(path), first_line(error))


def check_sizes(
    stated: Sequence[tuple[str, Size]], size_of: Callable[[str], Size], track: Track = lambda items, *_: items
) -> tuple[list[Problem], str | None]:
    """Check that images can be read and have the sizes that are stated, pairs of file and size.

    Returns what is wrong, and a line if most of the sizes look exchanged. `size_of` reads a size, as `read_size`;
    `track` shows progress: it is called with an iterable, what is done, and the number of steps.
    """
    problems, swapped, number = [], 0, 0
    sizes = in_threads(lambda entry: attempt(size_of, entry[0], 'image'), stated)
    for (file, size), actual in track(zip(stated, sizes), 'reading images', len(stated)):
        if isinstance(actual, Problem):
            problems.append(actual)
            continue
        number += 1
        if size != actual:
            swapped += size == actual[::-1]
            detail = f'{actual[0]} x {actual[1]}, the annotations say {size[0]} x {size[1]}'
            problems.append(Problem('image of another size', file, detail))
    if not swapped or swapped < MOSTLY * number:
        return problems, None
    return problems, (
        f'the sizes look like width and height exchanged ({swapped} of {number} images), as of files before their '
        'EXIF data turn them: annotate the images as they are shown, or remove the orientation from the files'
    )
