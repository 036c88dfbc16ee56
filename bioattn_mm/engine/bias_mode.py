"""Choosing TransNeXt's position bias without editing a config."""

from mmengine.config import Config

from ..errors import InputError

# Settings of the backbone for each mode. The linear mode's pooled grid is that of the pre-training size.
BIAS_MODES = dict(
    extrapolate=dict(bias_mode='extrapolate', pool_size=None),
    interpolate=dict(bias_mode='interpolate', pool_size=None),
    linear=dict(bias_mode='extrapolate', pool_size=7),
)


def set_bias_mode(config: Config, mode: str) -> None:
    """Set the position bias of a config's TransNeXt backbone to one of `BIAS_MODES`.

    Raises:
        InputError: The config has another backbone.
    """
    backbone = config.model.get('backbone', {}).get('type')
    if backbone not in ('bioattn_mm.TransNeXt', 'TransNeXt'):
        raise InputError(f'--bias-mode is for configs with a bioattn_mm.TransNeXt backbone, this one has {backbone}')
    config.model.backbone.update(BIAS_MODES[mode])
