"""The length of a training, `--epochs`."""

import pytest
from mmengine.config import Config
from mmengine.optim import ExponentialLR, LinearLR

from bioattn_mm.data.formats.arguments import DataArguments
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.schedule import num_steps, set_epochs, start_from_scratch

from ...own_folders import write_coco_folder, write_mask_folder

NUM_IMAGES = 40  # of which 36 are trained on, in batches of 2
BATCH_SIZE = 'train_dataloader.batch_size'
OPTIONS = {BATCH_SIZE: 4, 'train_cfg.val_interval': 7}
UPERNET, MASK_RCNN, MASK2FORMER = 'upernet_micro_ade20k', 'mask_rcnn_micro_coco', 'mask2former_micro_ade20k'


@pytest.fixture(scope='module')
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DataArguments]:
    root = tmp_path_factory.mktemp('own')
    return {
        'coco': DataArguments(str(write_coco_folder(root / 'parts', range(NUM_IMAGES)))),
        'ade20k': DataArguments(str(write_mask_folder(root / 'scenes', range(NUM_IMAGES)))),
    }


def read(name: str, folders: dict, **kwargs) -> Config:
    return load_config(f'transnext/{name}', data=folders[name.split('_')[-1]], **kwargs)


def times(config: Config) -> str:
    """Type, begin, end and milestones of the schedulers, all of which count iterations."""
    assert not any(each.by_epoch for each in config.param_scheduler)
    return ', '.join(
        ' '.join(map(str, (each.type, each.get('begin'), each.get('end'), *each.get('milestones', []))))
        for each in config.param_scheduler
    )


@pytest.mark.parametrize(
    ('name', 'options', 'length', 'validation', 'logs', 'schedulers'),
    [
        (UPERNET, dict(epochs=20), 360, 36, 36, 'LinearLR 0 36, PolyLR 36 360'),  # 10 validations in all
        (UPERNET, dict(epochs=2000), 36000, 3600, 50, 'LinearLR 0 1500, PolyLR 1500 36000'),  # a long one
        (UPERNET, dict(epochs=1), 18, 18, 1, 'PolyLR 1 18'),  # a warm-up of a single iteration is none
        (UPERNET, dict(epochs=10, cfg_options=OPTIONS), 90, 7, 9, 'LinearLR 0 9, PolyLR 9 90'),
        # Of 108 iterations; milestones after 8 and 11 of 12 epochs.
        (MASK_RCNN, dict(epochs=6), 6, 1, 10, 'LinearLR 0 10, MultiStepLR 0 108 72 99'),
        (MASK_RCNN, dict(epochs=3, mini=True), 54, 27, 5, 'LinearLR 0 5, PolyLR 5 54'),
        ('dino_4scale_micro_coco', dict(epochs=1), 1, 1, 1, 'MultiStepLR 0 18 16'),
    ],
)
def test_length_and_schedule(
    name: str, options: dict, length: int, validation: int, logs: int, schedulers: str, folders: dict
) -> None:
    config = read(name, folders, **options)
    by_epoch = 'max_epochs' in config.train_cfg
    assert by_epoch == (name != UPERNET and 'mini' not in options)
    assert config.train_cfg['max_epochs' if by_epoch else 'max_iters'] == length
    assert (config.train_cfg.val_interval, config.default_hooks.logger.interval) == (validation, logs)
    assert by_epoch or 'cfg_options' in options or config.default_hooks.checkpoint.interval == validation
    assert times(config) == schedulers


def test_schedulers_of_other_kinds(folders: dict) -> None:
    config = read(MASK_RCNN, folders)
    config.param_scheduler = [
        dict(type='CosineAnnealingLR', by_epoch=True, begin=6, T_max=6, end=12, convert_to_iter_based=True),
        dict(type='StepLR', step_size=3),
        dict(type='mmengine.CosineRestartLR', periods=[4, 8], restart_weights=[1, 0.5]),
        dict(type=ExponentialLR, gamma=0.5),
    ]
    set_epochs(config, 2)
    # It halves the rate 12 times as before: of 36 iterations in every third.
    assert config.param_scheduler.pop().gamma ** 3 == pytest.approx(0.5)
    assert config.param_scheduler == [
        dict(type='CosineAnnealingLR', by_epoch=False, begin=18, T_max=18, end=36),
        dict(type='StepLR', by_epoch=False, step_size=9),
        dict(type='mmengine.CosineRestartLR', by_epoch=False, periods=[12, 24], restart_weights=[1, 0.5]),
    ]
    # A warm-up is known by its type, whether it is named with a scope or is a class.
    for kind in ('mmengine.LinearLR', LinearLR):
        config.param_scheduler = [dict(type=kind, by_epoch=False, begin=0, end=500)]
        config.train_cfg.max_epochs = 12
        set_epochs(config, 2)
        assert config.param_scheduler[0].end == 3
    config.param_scheduler = [dict(type='ConstantLR', by_epoch=False)]  # to the end
    set_epochs(config, 2)
    assert 'end' not in config.param_scheduler[0]
    # Milestones in epochs are none of schedulers that count iterations by then.
    with pytest.raises(InputError, match='--epochs changes all .* param_scheduler.1.milestones would be'):
        read(MASK_RCNN, folders, epochs=6, cfg_options={'param_scheduler.1.milestones': [15, 18]})


def test_the_longer_a_training_the_lower_its_rate(folders: dict) -> None:
    for name, epochs, steps, rate in (
        (UPERNET, 20, 360, 7.5e-4),  # 1e-3 * sqrt(200 / 360)
        (UPERNET, 2, 36, 1e-3),
        (UPERNET, 5000, 90000, 1e-4),
        (MASK2FORMER, 100, 1800, 2e-4),
    ):
        config = read(name, folders, mini=True, epochs=epochs, dataloaders=('train_dataloader',))
        assert num_steps(config) == config.param_scheduler[-1].end == steps
        assert config.optim_wrapper.optimizer.lr == rate


def test_random_weights_for_the_epochs_of_a_config_and_with_a_rate(folders: dict) -> None:
    trained = dict(from_scratch=True, dataloaders=('train_dataloader',))
    options = {'train_cfg.max_epochs': 50, BATCH_SIZE: 2}
    config = read(MASK_RCNN, folders, cfg_options=options, **trained)
    assert (num_steps(config), num_steps(config, num_processes=4)) == (900, 250)  # 18 steps an epoch, or 5
    assert config.optim_wrapper.optimizer.lr == 4.7e-4
    config = read(MASK_RCNN, folders, cfg_options={'optim_wrapper.optimizer.lr': 0.5}, **trained)
    assert config.optim_wrapper.optimizer.lr == 0.5


def test_random_weights_have_one_rate() -> None:
    """Also where a config has a slower backbone; sizes and schedule stay. Rates of others are in test_mini.py."""
    name = 'transnext/mask2former_tiny_ade20k'
    config, before = load_config(name, from_scratch=True), load_config(name)
    assert config.model.backbone.init_cfg is None and config.optim_wrapper.optimizer.lr == 2e-4
    assert not config.auto_scale_lr.enable
    factors = [rule.get('lr_mult', 1) for rule in config.optim_wrapper.paramwise_cfg.custom_keys.values()]
    assert factors and set(factors) == {1}
    for key in ('train_cfg', 'param_scheduler', 'train_dataloader'):
        assert config[key] == before[key]
    config.load_from = 'segmentor.pth'  # of a whole model
    start_from_scratch(config)
    assert config.load_from is None


def test_an_incomplete_batch_that_is_left_out(folders: dict) -> None:
    """A loop that counts epochs has fewer steps then; one that counts iterations goes on with the next epoch."""
    options = {BATCH_SIZE: 8}  # 36 images
    assert set_epochs(read(MASK_RCNN, folders, cfg_options=options), 6) == 5
    options['train_dataloader.drop_last'] = True
    config = read(MASK_RCNN, folders, epochs=6, cfg_options=options)
    assert times(config).endswith('MultiStepLR 0 24 16 22') and num_steps(config) == 24
    config = read(UPERNET, folders, cfg_options=options)
    assert set_epochs(config, 6) == 5
    assert set_epochs(config, 10, num_processes=2) == 3 and config.train_cfg.max_iters == 30
    with pytest.raises(InputError, match='^36 training images .* less than a batch of 64'):
        read(MASK_RCNN, folders, epochs=6, cfg_options=dict(options, **{BATCH_SIZE: 64}))
