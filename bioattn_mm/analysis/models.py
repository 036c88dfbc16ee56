"""Backbones of configs."""

from pathlib import Path

import torch
from mmengine.config import Config

from ..checkpoints import load_backbone
from ..errors import InputError
from ..models.backbones import Backbone
from ..registry import MODELS

# Random weights are the same in every run.
SEED = 0


def build_backbone(config: Config, checkpoint: str | None = None, device: str = 'cpu') -> tuple[Backbone, str]:
    """The backbone of a config, in eval mode, without gradients for its parameters.

    Args:
        config: Config of a whole model whose backbone is a subclass of `Backbone`.
        checkpoint: File of the whole model, of its backbone, or of ImageNet. None for the file of the backbone's
            `init_cfg` where it is a local one, else random weights.
        device: Device that the backbone is moved to.

    Returns:
        The backbone, and what its weights are, for a user to read.

    Raises:
        InputError: The config has another backbone, or the checkpoint does not fit it.
    """
    settings = dict(config.model.get('backbone', {}))
    name = str(settings.pop('type', None))
    backbone_type = MODELS.get(name)
    if backbone_type is None or not issubclass(backbone_type, Backbone):
        raise InputError(
            f'{config.filename} has the backbone {name}: expected one of bioattn_mm or a subclass of one'
        )
    init_cfg = settings.pop('init_cfg', None) or {}
    prefix = ''
    if checkpoint is None and Path(init_cfg.get('checkpoint', '')).is_file():
        checkpoint, prefix = init_cfg['checkpoint'], init_cfg.get('prefix', '')
    torch.manual_seed(SEED)
    backbone = backbone_type(**settings)
    if checkpoint is not None:
        load_backbone(backbone, checkpoint, prefix)
    backbone = backbone.to(device).eval().requires_grad_(False)
    return backbone, 'random weights' if checkpoint is None else checkpoint
