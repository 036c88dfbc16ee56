"""Misspelt options are refused before anything is built."""

import pytest
from mmengine.config import Config

from bioattn_mm.errors import InputError
from bioattn_mm.training.config.options import check_name

from ...conftest import ROOT

MISSPELT = {
    'trian_cfg.max_iters': 'train_cfg.max_iters',
    'train_dataloaders.batch_size': 'train_dataloader.batch_size',
    'env_cfg.cudnn_benchmrk': 'env_cfg.cudnn_benchmark',
    'auto_scale_lr.enabel': 'auto_scale_lr.enable',
    'model.test_cfg.crop_sizes': 'model.test_cfg.crop_size',
    'env_cfg.mp_cfg.mp_start_methods': 'env_cfg.mp_cfg.mp_start_method',
}


def test_misspelt_names_and_new_ones_that_are_right() -> None:
    upernet = Config.fromfile(ROOT / 'configs/transnext/upernet_micro_ade20k.py')
    upernet.auto_scale_lr = dict(enable=False, base_batch_size=16)
    for key, meant in MISSPELT.items():
        with pytest.raises(InputError, match=f'^--cfg-options {key}: .*did you mean {meant}[?]$'):
            check_name(upernet, key)
    with pytest.raises(InputError, match='^--cfg-options something_else: '):
        check_name(upernet, 'something_else')
    for key in (  # new ones
        'auto_scale_lr.enable', 'custom_imports.imports', 'model.test_cfg.mode', 'randomness.seed', 'load_from',
        'find_unused_parameters', 'model.backbone.with_cp', 'default_hooks.checkpoint.max_keep_ckpts',
    ):  # fmt: skip
        check_name(upernet, key)
