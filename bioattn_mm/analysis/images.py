"""Images as a config's test pipeline and data preprocessor hand them to the model."""

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import BaseDataElement
from timm.layers import to_2tuple
from torch import Tensor

from ..data.transforms import name_bad_files
from ..errors import InputError
from ..runtime.images import shown
from ..runtime.paths import images_below
from ..training.config.pipelines import (
    data_preprocessor_of,
    find_datasets,
    image_kind,
    prefix_of,
    type_name,
    without_annotations,
)

LOADERS = ('LoadImageFromFile', 'CheckedLoadImageFromFile', 'LoadChannelsFromFile')
# Where the shorter side of images is given, the longer one gets at most this many times as long.
MAX_ASPECT_RATIO = 4


@dataclass
class PreparedImage:
    """An image that went through a config's test pipeline.

    Attributes:
        path: Its file; None for an image that was given as an array.
        original_size: (height, width) of the file in pixels.
        pixels: The image after the pipeline, before normalisation: RGB, uint8 (H, W, 3); of images of other channels
            three of them (see `runtime.images.shown`).
        inputs: The model's input, (1, channels, H', W'), normalised and possibly padded at the bottom and right.
        batch: What the pipeline gave: a batch of one for `model.test_step`.
    """

    path: Path | None
    original_size: tuple[int, int]
    pixels: np.ndarray
    inputs: Tensor
    batch: dict[str, list]

    def input_pixel(self, query: tuple[int, int]) -> tuple[int, int]:
        """Row and column in `pixels`, and so in `inputs`, of a pixel (row, column) of the file."""
        height, width = self.original_size
        if not (0 <= query[0] < height and 0 <= query[1] < width):
            name = self.path or 'the image'
            raise InputError(f'--query must be a pixel of {name}, {height} x {width}, got {query[0]} {query[1]}')
        # The centre of a pixel is half a pixel from its corner.
        return tuple(int((q + 0.5) * r / o) for q, r, o in zip(query, self.pixels.shape, self.original_size))


def find_images(config: Config, folder: str | None, limit: int) -> list[Path]:
    """An image, or the first images of a folder and its subfolders, in the order of their paths.

    Without a folder it is that of the config's validation images.
    """
    if folder:
        path = Path(folder)
    else:
        dataset = next(find_datasets(config.get('val_dataloader')), None)
        if dataset is None:
            raise InputError(f'{config.filename} names no folder of validation images: name one with --images')
        prefix = prefix_of(dataset)
        if isinstance(prefix, dict):
            prefix = next((prefix[key] for key in ('img_path', 'img') if key in prefix), '')
        path = Path(dataset['data_root']) / prefix
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f'no image or folder of images at {path}: name one with --images')
    return images_below(path)[:limit]


class ImageReader:
    """Reads images through the test pipeline and the data preprocessor of a config.

    Args:
        config: Config of a model in mmdet, mmseg or mmpretrain.
        size: (height, width) in pixels that images are resized to, whatever their aspect ratio; an int for the
            length of the shorter side, with the aspect ratio kept and the longer side at most `MAX_ASPECT_RATIO`
            times as long; None for the pipeline's own resize. Where the pipeline cuts out the middle, as those of
            classifiers do, the whole image is resized to the size of that, so that pixels of file and input
            correspond.
        device: Device of the model's inputs.
    """

    def __init__(self, config: Config, size: tuple[int, int] | int | None = None, device: str = 'cpu') -> None:
        init_default_scope(config.default_scope)
        self.kind = image_kind(config)
        steps = _test_steps(config)
        crop = next((step for step in steps if type_name(step) == 'CenterCrop'), None)
        resizes = [step for step in steps if 'Resize' in step['type']]
        if size is None and crop is not None:
            resize = dict(type='Resize', scale=to_2tuple(crop['crop_size']), keep_ratio=False)
            steps = [resize if step is crop else step for step in steps if step not in resizes]
        elif size is not None:
            if len(resizes) != 1:
                raise InputError(f'--size needs one resize in the test pipeline, this config has {len(resizes)}')
            keep_ratio = isinstance(size, int)
            scale = (size * MAX_ASPECT_RATIO, size) if keep_ratio else (size[1], size[0])
            resize = dict(type='Resize', scale=scale, keep_ratio=keep_ratio)
            steps = [resize if step in resizes else step for step in steps if step is not crop]
        is_loader = [type_name(step) in LOADERS for step in steps]
        self.load = Compose([step for step, loads in zip(steps, is_loader) if loads])
        name_bad_files(self.load)
        self.pipeline = Compose([step for step, loads in zip(steps, is_loader) if not loads])
        self.preprocessor = MODELS.build(data_preprocessor_of(config)).to(device)

    def __call__(self, image: Path | np.ndarray) -> PreparedImage:
        """Prepare an image: its file, or BGR values, uint8 (H, W, 3).

        Raises:
            InputError: The file cannot be decoded.
        """
        if isinstance(image, np.ndarray):
            path, size = None, image.shape[:2]
            loaded = dict(img=image, img_path=None, img_id=0, img_shape=size, ori_shape=size)
        else:
            path, loaded = image, self.load(dict(img_path=str(image), img_id=0))
        packed = self.pipeline(loaded)
        return self.prepared(path, packed['inputs'], packed['data_samples'])

    def prepared(self, path: Path | None, pixels: Tensor, sample: BaseDataElement) -> PreparedImage:
        """What the data preprocessor makes of the pipeline's output: pixels (C, H, W) from 0 to 255, data sample."""
        batch = dict(inputs=[pixels], data_samples=[sample])
        inputs = self.preprocessor(copy.deepcopy(batch), False)['inputs']
        image = pixels.permute(1, 2, 0).cpu().numpy()
        if self.kind is None or self.kind.dtype == 'uint8':  # an attack makes floats of them
            image = image.round().astype(np.uint8)
        bgr = image if self.kind is None else shown(image)
        rgb = np.ascontiguousarray(bgr[..., ::-1])
        return PreparedImage(path, tuple(sample.ori_shape[:2]), rgb, inputs, batch)


def _test_steps(config: Config) -> list[dict]:
    """The test pipeline without annotations: the images may come from a folder that has none."""
    dataset = next(find_datasets(config.test_dataloader), {})
    return without_annotations(dataset.get('pipeline', []))


def stride_of(grid: tuple[int, int], size: tuple[int, int]) -> int:
    """Stride of a layer's tokens in pixels: a power of two, or of other models 7, 14 or a multiple.

    Args:
        grid: (height, width) of the tokens: `size` divided by the stride, rounded up, or down for models that leave
            out the rest.
        size: (height, width) of the model's input in pixels.
    """
    for stride in (*(2**exponent for exponent in range(10)), *(7 * 2**exponent for exponent in range(5))):
        up, down = (tuple((length + rest) // stride for length in size) for rest in (stride - 1, 0))
        if tuple(grid) in (up, down):
            return stride
    raise InputError(f'no stride gives a grid of {grid} tokens for an image of {size} pixels')
