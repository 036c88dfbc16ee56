"""Videos: reading the frames of files and cameras, and writing MP4."""

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from ..errors import InputError
from .files import PARTIAL

FRAME_RATE = 25.0  # the rate of a camera that does not say its own
# Codecs that browsers play, then one that every player does. The wheels of OpenCV have no encoder for H.264 (avc1).
CODECS = ('vp09', 'avc1', 'mp4v')


class Video:
    """The frames of a video file or a camera.

    Args:
        source: Path of the file, or number of the camera.
        max_frames: End after this many frames; None for all that there are.

    Attributes:
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
        self._capture = cv2.VideoCapture(source if self.is_camera else str(source))
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


class Mp4Writer:
    """An MP4 file to write frames into: a context, at whose end, also by an interruption, it gets its name."""

    def __init__(self, path: Path, frame_rate: float) -> None:
        self.path, self.frame_rate = path, frame_rate
        # OpenCV chooses the container by the suffix.
        self._partial = path.with_name(f'.{path.stem}{PARTIAL}.mp4')
        self._writer: cv2.VideoWriter | None = None

    def __enter__(self) -> 'Mp4Writer':
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.release()
            self._partial.replace(self.path)

    def write(self, frame: np.ndarray) -> None:
        """Write a frame, BGR, uint8 (H, W, 3); OpenCV leaves out the last row and column of an odd number."""
        if self._writer is None:
            size = frame.shape[1::-1]
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for codec in CODECS:
                code = cv2.VideoWriter_fourcc(*codec)
                self._writer = cv2.VideoWriter(str(self._partial), code, self.frame_rate, size)
                if self._writer.isOpened():
                    break
            else:
                self._writer = None
                raise OSError(
                    f'OpenCV cannot write an MP4 of {size[0]} x {size[1]} pixels: none of {", ".join(CODECS)}'
                )
        self._writer.write(frame)
