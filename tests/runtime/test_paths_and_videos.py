"""What a command line names: images, folders, globs, videos, cameras."""

import argparse
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from bioattn_mm.errors import InputError
from bioattn_mm.runtime.arguments import add_results
from bioattn_mm.runtime.paths import find_inputs
from bioattn_mm.runtime.videos import FRAME_RATE, Video


def write_video(path: str, *values: int) -> None:
    writer = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*'mp4v'), 5, (64, 48))
    for value in values:
        writer.write(np.full((48, 64, 3), value, np.uint8))
    writer.release()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with images in two folders and a video of 5 frames."""
    monkeypatch.chdir(tmp_path)
    for name in 'b.png a.JPG notes.txt inner/c.tif scan .b.png .trash/d.png inner/.trash/d.png'.split():
        (tmp_path / 'images' / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / 'images' / name).touch()
    for name in ('none', 'images/album.jpg'):
        (tmp_path / name).mkdir()
    write_video('clip.mp4', *range(0, 250, 50))
    return tmp_path


def test_files_folders_and_globs(place: Path) -> None:
    def names(*inputs: str) -> list[str]:
        images, videos = find_inputs(list(inputs))
        return [path.as_posix() for path in images] + [video.source.as_posix() for video in videos]

    assert names('images') == ['images/a.JPG', 'images/b.png', 'images/inner/c.tif']
    assert names('images/*') == ['images/a.JPG', 'images/b.png']
    assert names('images/**/*.*', 'clip.mp4') == ['images/a.JPG', 'images/b.png', 'images/inner/c.tif', 'clip.mp4']
    # A file that is named is tried, whatever its name; each comes once.
    assert names('images/b.png', 'images/scan', 'images') == [
        'images/b.png', 'images/scan', 'images/a.JPG', 'images/inner/c.tif'
    ]  # fmt: skip
    assert names('*', '*.mp4') == ['clip.mp4']


BAD = {
    'images/none.jpg': 'nothing to predict on at images/none.jpg: expected an image, a folder, a glob, a video or',
    'images/*.bmp': r'nothing to predict on at images/\*.bmp',
    'none': 'no images in none: expected files that end in .jpg, ',
    'bad.mp4': 'bad.mp4 has no frames that can be decoded',
    '97': 'camera 97 gives no picture',
}


@pytest.mark.parametrize(('name', 'message'), BAD.items(), ids=BAD)
def test_names_that_lead_to_nothing(name: str, message: str, place: Path) -> None:
    (place / 'bad.mp4').write_text('no video')
    with pytest.raises(InputError, match=message):
        find_inputs(['images', name])


def test_videos_and_cameras(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    video = Video(Path('clip.mp4'))
    assert (video.name, video.num_frames, video.frame_rate) == ('clip', 5, 5)
    assert np.allclose([frame.mean() for frame in video], range(0, 250, 50), atol=5)
    video = Video(Path('clip.mp4'), max_frames=2)
    assert video.num_frames == len(list(video)) == 2
    write_video('one.mp4', 99)
    assert Video(Path('one.mp4')).num_frames == 1
    # A camera gives the frames of the video, and states neither a rate nor a number of frames.
    open_capture = cv2.VideoCapture

    def open_camera(number: int) -> SimpleNamespace:
        assert number == 3
        capture, count = open_capture('clip.mp4'), cv2.CAP_PROP_FRAME_COUNT
        return SimpleNamespace(read=capture.read, release=capture.release, get=lambda name: -1.0 * (name == count))

    monkeypatch.setattr(cv2, 'VideoCapture', open_camera)
    images, (camera,) = find_inputs(['3'])
    assert not images and camera.is_camera
    assert (camera.name, camera.num_frames, camera.frame_rate) == ('camera_3', None, FRAME_RATE)
    assert len(list(camera)) == 5
    _, (camera,) = find_inputs(['3'], max_frames=2)
    assert camera.num_frames == len(list(camera)) == 2


def test_the_least_score_that_is_drawn() -> None:
    parser = argparse.ArgumentParser()
    add_results(parser)
    assert parser.parse_args([]).score_thr == 0.3
