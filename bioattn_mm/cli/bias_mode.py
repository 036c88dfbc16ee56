"""Choosing TransNeXt's position bias without editing a config."""

from mmengine.config import Config
from timm.layers import to_2tuple

from ..errors import InputError

BIAS_MODES = ('extrapolate', 'interpolate', 'linear')
# The pooled grid is 1/32 of the image.
POOLED_STRIDE = 32
# Image size in training if the config says none: the default of `TransNeXt`.
DEFAULT_IMG_SIZE = 512


def set_bias_mode(config: Config, mode: str) -> None:
    """Set the position bias of a config's TransNeXt backbone to one of `BIAS_MODES`.

    'linear' keeps the pooled grid at that of the training size, `model.backbone.img_size`, whatever the size of the
    image, and extrapolates the bias to it (TransNeXt, appendix D.2): 16 x 16 for 512 pixels, 25 x 25 for 800.

    Raises:
        InputError: The config has another backbone.
    """
    backbone = config.model.get('backbone', {})
    if backbone.get('type') not in ('bioattn_mm.TransNeXt', 'TransNeXt'):
        raise InputError(
            f'--bias-mode is for configs with a bioattn_mm.TransNeXt backbone, this one has {backbone.get("type")}'
        )
    if mode == 'linear':
        img_size = to_2tuple(backbone.get('img_size', DEFAULT_IMG_SIZE))
        backbone.update(bias_mode='extrapolate', pool_size=tuple(max(1, size // POOLED_STRIDE) for size in img_size))
    else:
        backbone.update(bias_mode=mode, pool_size=None)
