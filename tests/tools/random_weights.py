"""Random weights with which a model tells images apart, for tests that need a checkpoint and no training."""

import re
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, init_default_scope

from bioattn_mm.training.config.classes import default_palette, set_classes
from bioattn_mm.training.config.mini import make_mini

# Standard deviations of some weights, by the ends of their names.
DECISIVE = {
    # Heads start so small that all images look alike to them.
    r'(fc_cls|cls_branches\.\d|conv_logits)\.weight': 0.3,
    r'(rpn_reg|fc_reg)\.weight': 0.1,
    # Not larger: proposals whose score is 1.0 come in any order.
    r'rpn_cls\.weight': 0.03,
    r'conv_seg\.weight': 0.03,
    # Mask2Former's queries leave out where their mask is negative: far from 0, no rounding decides.
    r'mask_feature\.bias': 10.0,
}


def random_checkpoint(path: Path, config_path: str, classes: tuple[str, ...] = (), seed: int = 0) -> None:
    """Write weights of the miniature of a config, or of one for these classes, that tell images apart."""
    config = make_mini(Config.fromfile(config_path))
    init_default_scope(config.default_scope)
    dataset_meta = DATASETS.get(f'{config.default_scope}.{config.test_dataloader.dataset.type}').METAINFO
    if classes:
        set_classes(config, classes)
        dataset_meta = dict(classes=classes, palette=default_palette(len(classes)))
    torch.manual_seed(seed)
    state_dict = MODELS.build(config.model).state_dict()
    for name, value in state_dict.items():
        for pattern, deviation in DECISIVE.items():
            if re.search(f'{pattern}$', name):
                value.normal_(std=deviation)
        if name.endswith('running_var'):
            value.uniform_(0.5, 1.5)
        if name == 'decode_head.conv_seg.bias':
            value[2] = 2.0  # the sky, so that some pixels are right
    meta = dict(dataset_meta=dataset_meta, experiment_name='not for the public')
    torch.save(dict(state_dict=state_dict, meta=meta, optimizer=dict(state={})), path)
