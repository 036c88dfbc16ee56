"""The backbone of a config, with the weights of a checkpoint."""

from pathlib import Path

import torch
from mmengine.config import Config

from ..checkpoints import load_backbone
from ..errors import InputError
from ..models.backbones import Backbone
from ..registry import MODELS

SEED = 0  # of random weights


def build_backbone(
    config: Config,
    checkpoint: str | None = None,
    device: str = 'cpu',
    classes: tuple[type[Backbone], ...] = (Backbone,),
) -> tuple[Backbone, str]:
    """Build the backbone of a config for analysis: in eval mode, its parameters without gradients.

    Args:
        config: Config of a whole model whose backbone is a subclass of `Backbone`.
        checkpoint: File of the whole model, of its backbone, or of ImageNet. None for the file in the backbone's
            `init_cfg` if it is a local one, else random weights, the same in every run.
        device: Device that the backbone is moved to.
        classes: Classes that the backbone may have.

    Returns:
        The backbone, and the file of its weights or 'random weights'.

    Raises:
        InputError: The config has another backbone, or the checkpoint does not fit it.
    """
    settings = dict(config.model.get('backbone', {}))
    name = str(settings.pop('type', None))
    backbone_type = MODELS.get(name)
    if backbone_type is None or not issubclass(backbone_type, classes):
        expected = ' or '.join(cls.__name__ for cls in classes)
        raise InputError(f'{config.filename} has the backbone {name}: expected a subclass of {expected}')
    init_cfg = settings.pop('init_cfg', None) or {}
    settings.pop('out_type', None)  # analysis looks at maps, also those of a classifier's backbone
    prefix = ''
    if checkpoint is None and Path(init_cfg.get('checkpoint', '')).is_file():
        checkpoint, prefix = init_cfg['checkpoint'], init_cfg.get('prefix', '')
    torch.manual_seed(SEED)
    backbone = backbone_type(**settings)
    if checkpoint is not None:
        load_backbone(backbone, checkpoint, prefix)
    return backbone.to(device).eval().requires_grad_(False), checkpoint or 'random weights'
