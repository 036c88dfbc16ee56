"""What a user names to predict on: images, folders, globs, videos and cameras."""

import glob
from pathlib import Path

from ..errors import InputError
from .videos import Video

IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp')
ARRAY_SUFFIX = '.npy'  # the suffix of images as arrays of NumPy
VIDEO_SUFFIXES = ('.mp4', '.avi', '.mov', '.mkv', '.webm', '.m4v', '.mpg', '.mpeg', '.wmv')


def find_inputs(names: list[str], max_frames: int | None = None) -> tuple[list[Path], list[Video]]:
    """Find the images and videos that the words of a command line name.

    Args:
        names: Files, folders with their subfolders, globs, and numbers of cameras. A file that is no video by its
            suffix is taken for an image.
        max_frames: See `Video`.

    Returns:
        The images, each once, in the given order and in folders and globs by name; and the videos.

    Raises:
        InputError: A name leads to nothing, a folder has no images, or a video no frames.
    """
    images, videos = [], []
    for name in names:
        path = Path(name)
        if path.is_dir():
            images += images_below(path)
        elif path.is_file():
            (videos if path.suffix.lower() in VIDEO_SUFFIXES else images).append(path)
        elif name.isdecimal():
            videos.append(int(name))
        else:
            known = (*IMAGE_SUFFIXES, ARRAY_SUFFIX, *VIDEO_SUFFIXES)
            found = [Path(file) for file in sorted(glob.glob(name, recursive=True))]
            found = [file for file in found if file.suffix.lower() in known and file.is_file()]
            if not found:
                raise InputError(
                    f'nothing to predict on at {name}: expected an image, a folder, a glob, a video or the number of '
                    'a camera'
                )
            for file in found:
                (videos if file.suffix.lower() in VIDEO_SUFFIXES else images).append(file)
    return list(dict.fromkeys(images)), [Video(source, max_frames) for source in dict.fromkeys(videos)]


def is_hidden(path: Path) -> bool:
    """Whether a file, seen from a folder, or a folder that it is in, is hidden, or what macOS adds to an archive."""
    return any(part.startswith('.') or part == '__MACOSX' for part in path.parts)


def images_below(folder: Path, required: bool = True) -> list[Path]:
    """The images in a folder and its subfolders, by name; if there are none, the arrays of NumPy.

    What is hidden does not count, such as the trash of a photo manager or the checkpoints of Jupyter.

    Raises:
        InputError: It has neither, and they are required.
    """
    for suffixes in (IMAGE_SUFFIXES, (ARRAY_SUFFIX,)):
        found = sorted(
            path
            for path in folder.rglob('[!.]*')
            if path.suffix.lower() in suffixes and not is_hidden(path.relative_to(folder)) and not path.is_dir()
        )
        if found:
            break
    if found or not required:
        return found
    raise InputError(
        f'no images in {folder}: expected files that end in {", ".join((*IMAGE_SUFFIXES, ARRAY_SUFFIX))}'
    )
