"""Images of any kind as the inferencers take them, and the memory that a prediction needs."""

from pathlib import Path

import numpy as np
import torch
from mmcv.transforms import LoadImageFromFile

from ..datasets.transforms import LoadChannelsFromFile
from ..errors import InputError
from ..runtime.channels import read_channels


def read_image(path: str | Path, load: LoadImageFromFile) -> np.ndarray:
    """Read an image file.

    The image is turned as its EXIF data say. Grey images become three equal channels; an alpha channel is dropped;
    16 bits a channel become 8; CMYK becomes BGR.

    Args:
        path: The file.
        load: mmcv's transform with the arguments of the config's test pipeline, or `LoadChannelsFromFile`.

    Returns:
        BGR, uint8 (H, W, 3), or float32 if the pipeline loads that; (H, W, channels) of `LoadChannelsFromFile`, with
        the values of the file.

    Raises:
        InputError: The file is missing, or no image that can be decoded.
    """
    if isinstance(load, LoadChannelsFromFile):
        return read_channels(path, load.kind)
    try:
        return load(dict(img_path=str(path)))['img']
    except FileNotFoundError as error:
        raise InputError(f'image not found: {path}') from error
    except Exception as error:  # of OpenCV, Pillow or mmcv, which asserts that something was decoded
        raise InputError(f'cannot decode the image {path}: damaged, too large, or not an image') from error


def free_memory(device: torch.device) -> float:
    """Bytes that can still be allocated on a device; infinity where the system does not say."""
    if device.type == 'cuda':
        # PyTorch keeps what it has allocated once.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    try:
        lines = Path('/proc/meminfo').read_text(encoding='utf-8').splitlines()
    except OSError:
        return float('inf')
    amounts = [line.split()[1] for line in lines if line.startswith('MemAvailable:')]
    return int(amounts[0]) * 1024 if amounts else float('inf')
