"""Images as a config's test pipeline and data preprocessor hand them to the model."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor

from ..cli.pipelines import find_datasets, without_annotations
from ..errors import InputError

SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp')


@dataclass
class PreparedImage:
    """An image that went through a config's test pipeline.

    Attributes:
        path: Its file.
        original_size: (height, width) of the file in pixels.
        pixels: The image after the pipeline, before normalisation: RGB, uint8 (H, W, 3).
        inputs: The model's input, (1, 3, H', W'), normalised and possibly padded at the bottom and right.
    """

    path: Path
    original_size: tuple[int, int]
    pixels: np.ndarray
    inputs: Tensor


def find_images(config: Config, folder: str | None, limit: int) -> list[Path]:
    """The first images of a folder and its subfolders, in the order of their paths.

    Args:
        config: Config whose folder of validation images is taken if `folder` is None.
        folder: The folder.
        limit: Maximum number of images.

    Raises:
        InputError: The folder does not exist, or has no images.
    """
    path = Path(folder) if folder else _validation_folder(config)
    if not path.is_dir():
        raise InputError(f'no folder of images at {path}: name one with --images')
    images = sorted(file for file in path.rglob('*') if file.suffix.lower() in SUFFIXES)
    if not images:
        raise InputError(f'no images in {path}: expected files that end in {", ".join(SUFFIXES)}')
    return images[:limit]


def _validation_folder(config: Config) -> Path:
    dataset = next(find_datasets(config.val_dataloader), None)
    if dataset is None:
        raise InputError(f'{config.filename} names no folder of validation images: name one with --images')
    prefix = dataset.get('data_prefix', {})
    if isinstance(prefix, dict):
        prefix = next((prefix[key] for key in ('img_path', 'img') if key in prefix), '')
    return Path(dataset['data_root']) / prefix


class ImageReader:
    """Reads images through the test pipeline and the data preprocessor of a config.

    Args:
        config: Config of a model in mmdet, mmseg or mmpretrain.
        size: (height, width) in pixels that images are resized to, whatever their aspect ratio; None for the
            pipeline's own resize.
        device: Device of the model's inputs.

    Raises:
        InputError: `size` is given, and the pipeline does not have exactly one resize to replace.
    """

    def __init__(self, config: Config, size: tuple[int, int] | None = None, device: str = 'cpu') -> None:
        init_default_scope(config.default_scope)
        dataset = next(find_datasets(config.test_dataloader), {})
        # The images may come from a folder without annotations.
        steps = without_annotations(dataset.get('pipeline', []))
        if size is not None:
            resizes = [index for index, step in enumerate(steps) if 'Resize' in step['type']]
            if len(resizes) != 1:
                raise InputError(f'--size needs one resize in the test pipeline, this config has {len(resizes)}')
            steps[resizes[0]] = dict(type='Resize', scale=(size[1], size[0]), keep_ratio=False)
        self.pipeline = Compose(steps)
        self.preprocessor = MODELS.build(config.model.data_preprocessor).to(device)

    def __call__(self, path: Path) -> PreparedImage:
        """Read one image.

        Raises:
            InputError: The file cannot be decoded.
        """
        packed = self.pipeline(dict(img_path=str(path), img_id=0))
        image, sample = packed['inputs'], packed['data_samples']
        batch = self.preprocessor(dict(inputs=[image], data_samples=[sample]), False)
        return PreparedImage(
            path, tuple(sample.ori_shape[:2]), image.flip(0).permute(1, 2, 0).numpy(), batch['inputs']
        )


def stride_of(grid: tuple[int, int], size: tuple[int, int]) -> int:
    """Stride of a layer's tokens in pixels, a power of two.

    Args:
        grid: (height, width) of the token grid: `size` divided by the stride, rounded up.
        size: (height, width) of the model's input in pixels.

    Raises:
        ValueError: No stride gives this grid.
    """
    for stride in (2**exponent for exponent in range(10)):
        if all(-(-length // stride) == tokens for length, tokens in zip(size, grid)):
            return stride
    raise ValueError(f'no stride gives a grid of {grid} tokens for an image of {size} pixels')
