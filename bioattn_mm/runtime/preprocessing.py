"""The steps of `pipeline.json` that make a model's input of an image."""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from PIL import Image

from ..errors import InputError
from .images import DTYPES, ImageKind, as_input

INTERPOLATIONS = dict(
    nearest=cv2.INTER_NEAREST,
    bilinear=cv2.INTER_LINEAR,
    bicubic=cv2.INTER_CUBIC,
    area=cv2.INTER_AREA,
    lanczos=cv2.INTER_LANCZOS4,
)


RESIZES = ('resize', 'resize_edge')
READ = 'read'  # the step of `pipeline.json` that says what images are, before all others


def kind_of(steps: Sequence[dict]) -> ImageKind | None:
    """What the step `read` of `pipeline.json` says of the images; None without one: they are BGR, uint8 (H, W, 3)."""
    step = next((step for step in steps if step['type'] == READ), None)
    if step is None:
        return None
    channels, dtype = step.get('channels'), step.get('dtype')
    if type(channels) is not int or channels < 1 or dtype not in DTYPES:
        raise InputError(f'pipeline.json has a step that cannot be done, {step}: expected channels and a dtype')
    return ImageKind(channels, dtype)


@dataclass
class Prepared:
    """An image as the model takes it.

    Attributes:
        inputs: float32 (channels, H, W).
        size: (height, width) of the image in `inputs`, without what was padded at the bottom and right.
    """

    inputs: np.ndarray
    size: tuple[int, int]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the inputs."""
        return self.inputs.shape


def prepare(image: np.ndarray, steps: Sequence[dict], fixed_size: tuple[int, int] | None = None) -> Prepared:
    """Do the steps of `pipeline.json`.

    Args:
        image: BGR, uint8 (H, W, 3), or of the kind that the step `read` states (H, W, channels).
        steps: `preprocessing` of the description.
        fixed_size: (height, width) to which images are resized instead, for a model that takes one size alone; steps
            that crop to this size are done as they are.

    Raises:
        InputError: A step is unknown, or the image is too thin to be resized.
    """
    image, steps = as_input(image), [step for step in steps if step['type'] != READ]
    cropped = next((step.get('size') for step in steps if step['type'] == 'center_crop'), None)
    if fixed_size and cropped != list(fixed_size):
        resize = next((step for step in steps if step['type'] in RESIZES), {})
        method = {name: resize[name] for name in ('interpolation', 'backend') if name in resize}
        steps = [step for step in steps if step['type'] not in (*RESIZES, 'center_crop', 'pad')]
        steps = [dict(type='resize', scale=fixed_size[::-1], keep_ratio=False, **method), *steps]
    size = image.shape[:2]
    for step in steps:
        if step['type'] not in STEPS:
            raise InputError(f'pipeline.json has a step {step["type"]!r}, expected one of {", ".join(STEPS)}')
        try:
            image = STEPS[step['type']](image, **{name: value for name, value in step.items() if name != 'type'})
        except (TypeError, LookupError) as error:
            raise InputError(f'pipeline.json has a step that cannot be done, {step}: {error}') from error
        if step['type'] != 'pad':
            size = image.shape[:2]
    return Prepared(np.ascontiguousarray(image.transpose(2, 0, 1), dtype=np.float32), size)


def _resize(
    image: np.ndarray, scale: Sequence[int], keep_ratio: bool, interpolation: str = 'bilinear', backend: str = 'cv2'
) -> np.ndarray:
    height, width = image.shape[:2]
    if keep_ratio:
        factor = min(max(scale) / max(height, width), min(scale) / min(height, width))
        scale = (int(width * factor + 0.5), int(height * factor + 0.5))
    return _resized(image, (scale[0], scale[1]), interpolation, backend)


def _resize_edge(
    image: np.ndarray, edge: str, size: int, interpolation: str = 'bilinear', backend: str = 'cv2'
) -> np.ndarray:
    height, width = image.shape[:2]
    if edge == 'width' or (edge == 'short' and width < height) or (edge == 'long' and width > height):
        scale = (size, int(size * height / width))
    else:
        scale = (int(size * width / height), size)
    return _resized(image, scale, interpolation, backend)


def _resized(image: np.ndarray, size: tuple[int, int], interpolation: str, backend: str) -> np.ndarray:
    """Resize to (width, height)."""
    if min(size) < 1:
        height, width = image.shape[:2]
        raise InputError(f'an image of {width} x {height} pixels cannot be resized: its sides differ too much')
    if backend == 'pillow':
        return np.asarray(Image.fromarray(image).resize(size, Image.Resampling[interpolation.upper()]))
    # OpenCV takes the axis of a single channel away.
    return cv2.resize(image, size, interpolation=INTERPOLATIONS[interpolation]).reshape(*size[::-1], -1)


def _center_crop(image: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """The middle of an image; an image that is smaller stays as it is."""
    height, width = (min(side, length) for side, length in zip(size, image.shape))
    top, left = (int(round((length - side) / 2)) for length, side in zip(image.shape, (height, width)))
    return image[top : top + height, left : left + width]


def _normalize(image: np.ndarray, mean: Sequence[float], std: Sequence[float], channels: str) -> np.ndarray:
    image = image[..., ::-1] if channels == 'RGB' else image
    return (image.astype(np.float32) - np.float32(mean)) / np.float32(std)


def _pad(image: np.ndarray, divisor: int, value: float) -> np.ndarray:
    bottom, right = (-length % divisor for length in image.shape[:2])
    return np.pad(image, ((0, bottom), (0, right), (0, 0)), constant_values=value)


STEPS = dict(resize=_resize, resize_edge=_resize_edge, center_crop=_center_crop, normalize=_normalize, pad=_pad)
