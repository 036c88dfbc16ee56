"""Options that can be no such thing are refused by their names, before anything is built."""

import pytest
from mmengine.config import Config

from bioattn_mm.errors import InputError
from bioattn_mm.run_config.config import merge_options
from bioattn_mm.run_config.options import check_name, check_options

from ..tools.every_config import NAMES
from ..tools.running import ROOT

UPERNET = ROOT / 'configs/transnext/upernet_micro_ade20k.py'
WRONG = {
    'train_cfg.max_iters': (-5, 0, 'many', 2.5, float('inf'), True),
    'train_cfg.val_interval': (0, -1),
    'train_dataloader.batch_size': (0, -2, '2', [2]),
    'test_dataloader.batch_size': (0,),
    'train_dataloader.num_workers': (-1,),
    'optim_wrapper.optimizer.lr': ('high', -1e-3, float('nan'), float('inf')),
    'optim_wrapper.optimizer.weight_decay': (-1,),
    'optim_wrapper.clip_grad.max_norm': (0, float('nan')),
    'default_hooks.logger.interval': (0,),
    'default_hooks.checkpoint.interval': (0, -2),
    'randomness.seed': (-1, 2**32, 'x'),
    'model.data_preprocessor.size': ((0, 0), (512, -1), 'large', (512, float('nan'))),
    'model.test_cfg.stride': ((0, 341), 0, 341, (341, 341, 341)),
    'model.test_cfg.mode': ('zigzag', 3),
    'model.data_preprocessor.std': ((0, 0, 0), (58.4, -57.1, 57.4)),
    'test_dataloader.dataset.pipeline.1.scale': ((0, 0), (-5, 10)),
    'train_dataloader.dataset.pipeline.3.crop_size': ((0, 512), ('a', 'b')),
    'model.decode_head.num_classes': (149,),
    'model.auxiliary_head.num_classes': (2,),
    'model.decode_head.loss_decode.loss_weight': (float('nan'),),
}
CASES = [(key, value) for key, values in WRONG.items() for value in values]


@pytest.fixture(scope='module')
def upernet() -> Config:
    return Config.fromfile(UPERNET)


@pytest.mark.parametrize(('key', 'value'), CASES)
def test_values_that_none_can_have(key: str, value: object, upernet: Config) -> None:
    config = Config(upernet.to_dict(), filename=upernet.filename)
    config.setdefault('randomness', dict(seed=None))
    config.optim_wrapper.setdefault('clip_grad', dict(max_norm=1))
    merge_options(config, {key: value})
    with pytest.raises(InputError, match=rf'^{key}\S*=.*: expected ') as error:
        check_options(config)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize(
    ('key', 'meant'),
    [
        ('trian_cfg.max_iters', 'train_cfg.max_iters'),
        ('train_dataloaders.batch_size', 'train_dataloader.batch_size'),
        ('modle.backbone.with_cp', 'model.backbone.with_cp'),
        ('optim_wraper.optimizer.lr', 'optim_wrapper.optimizer.lr'),
        ('env_cfg.cudnn_benchmrk', 'env_cfg.cudnn_benchmark'),
        ('auto_scale_lr.enabel', None),
        ('model.test_cfg.crop_sizes', 'model.test_cfg.crop_size'),
        ('something_else', None),
        ('env_cfg.mp_cfg.start_method', 'env_cfg.mp_cfg.mp_start_method'),
        ('env_cfg.threads', None),
    ],
)
def test_misspelt_names(key: str, meant: str | None, upernet: Config) -> None:
    config = Config(upernet.to_dict(), filename=upernet.filename)
    if key.startswith('auto_scale_lr'):
        config.auto_scale_lr, meant = dict(enable=False, base_batch_size=16), 'auto_scale_lr.enable'
    with pytest.raises(
        InputError, match=rf'^--cfg-options {key}: ' + (f'.*did you mean {meant}[?]$' if meant else '')
    ):
        check_name(config, key)


def test_new_names_that_are_right(upernet: Config) -> None:
    for key in (
        'auto_scale_lr.enable', 'custom_imports.imports', 'model.test_cfg.mode', 'randomness.seed', 'load_from',
        'find_unused_parameters', 'model.backbone.with_cp', 'default_hooks.checkpoint.max_keep_ckpts',
    ):  # fmt: skip
        check_name(upernet, key)


@pytest.mark.parametrize('name', NAMES[::7])
def test_configs_that_come_along_are_right(name: str) -> None:
    check_options(Config.fromfile(ROOT / f'configs/{name}.py'))
