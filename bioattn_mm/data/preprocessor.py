"""Normalisation of images of any number of channels."""

from collections.abc import Sequence

import torch
from mmengine.model import BaseDataPreprocessor
from mmengine.registry import MODELS as MMENGINE_MODELS

from ..registry import MODELS


@MODELS.register_module()
def multichannel_preprocessor(
    host: str, mean: Sequence[float], std: Sequence[float], **kwargs: object
) -> BaseDataPreprocessor:
    """A data preprocessor of mmdet or mmseg with a mean for each of any number of channels: theirs take 1 or 3.

    Args:
        host: Its type, such as 'DetDataPreprocessor'.
        mean: Mean of each channel, in the order in which the channels are loaded.
        std: Standard deviation of each channel.
        **kwargs: The other arguments of the host.
    """
    preprocessor = MMENGINE_MODELS.build(dict(type=host, **kwargs))
    for name, values in dict(mean=mean, std=std).items():
        preprocessor.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)
    preprocessor._enable_normalize = True
    return preprocessor
