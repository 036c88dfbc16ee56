"""What a user names to predict on: images, folders, globs, videos and cameras."""

import glob
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from ..errors import InputError

IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp')
ARRAY_SUFFIX = '.npy'  # of images as arrays of NumPy
VIDEO_SUFFIXES = ('.mp4', '.avi', '.mov', '.mkv', '.webm', '.m4v', '.mpg', '.mpeg', '.wmv')
FRAME_RATE = 25.0  # of a camera that does not say its own


class Video:
    """The frames of a video file or a camera.

    Args:
        source: Path of the file, or number of the camera.
        max_frames: End after this many frames; None for all that there are.

    Attributes:
        source: As given.
        name: Name of the file without its suffix, or 'camera_N'.
        frame_rate: Frames per second.
        num_frames: Number of frames as the file states it; None if it does not, and of a camera.

    Raises:
        InputError: It cannot be opened, or gives no frame.
    """

    def __init__(self, source: Path | int, max_frames: int | None = None) -> None:
        self.source, self.max_frames = source, max_frames
        self.is_camera = isinstance(source, int)
        self.name = f'camera_{source}' if self.is_camera else source.stem
        self._capture = cv2.VideoCapture(source if self.is_camera else opencv_path(source))
        found, self._first = self._capture.read()
        if not found:
            self._capture.release()
            raise InputError(
                f'camera {source} gives no picture'
                if self.is_camera
                else f'{source} has no frames that can be decoded: damaged, empty, or not a video'
            )
        self.frame_rate = self._capture.get(cv2.CAP_PROP_FPS) or FRAME_RATE
        stated = int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT))
        self.num_frames = stated if stated > 0 and not self.is_camera else None
        if max_frames is not None:
            self.num_frames = min(max_frames, self.num_frames or max_frames)

    def __iter__(self) -> Iterator[np.ndarray]:
        """The frames, once: BGR, uint8 (H, W, 3)."""
        found, frame, number = True, self._first, 0
        while found:
            yield frame
            number += 1
            if number == self.max_frames:
                break
            found, frame = self._capture.read()
        self._capture.release()


def opencv_path(path: Path) -> str:
    """A path as OpenCV takes it.

    Raises:
        InputError: It is not in UTF-8, where OpenCV crashes.
    """
    try:
        path.as_posix().encode()
    except UnicodeEncodeError as error:
        raise InputError(f'the name {path} is not in UTF-8: rename the file or its folder') from error
    return str(path)


def find_inputs(names: list[str], max_frames: int | None = None) -> tuple[list[Path], list[Video]]:
    """Find the images and videos that the words of a command line name.

    Args:
        names: Files, folders, globs, and numbers of cameras. A folder stands for the images in it and its
            subfolders (see `images_below`), a glob for the images and videos that match. A file that is no video by
            its suffix is taken for an image.
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
