"""The length of a training, `--epochs`."""

from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.optim import ExponentialLR, LinearLR

from bioattn_mm.data.formats.arguments import DataArguments
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.schedule import num_steps, set_epochs

from ...own_folders import write_coco_folder, write_mask_folder

ROOT = Path(__file__).parents[3]
NUM_IMAGES = 40  # of which 36 are trained on, in batches of 2


@pytest.fixture(scope='module')
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DataArguments]:
    root = tmp_path_factory.mktemp('own')
    return {
        'coco': DataArguments(str(write_coco_folder(root / 'parts', range(NUM_IMAGES)))),
        'ade20k': DataArguments(str(write_mask_folder(root / 'scenes', range(NUM_IMAGES)))),
    }


def read(name: str, folders: dict, **kwargs) -> Config:
    return load_config(str(ROOT / f'configs/transnext/{name}.py'), data=folders[name.split('_')[-1]], **kwargs)


def times(config: Config) -> list[tuple]:
    return [
        (each.type, each.by_epoch, each.get('begin'), each.get('end'), each.get('milestones'))
        for each in config.param_scheduler
    ]


def test_a_training_that_counts_iterations(folders: dict) -> None:
    config = read('upernet_micro_ade20k', folders, epochs=20)
    assert config.train_cfg.max_iters == 360
    # 10 validations in the whole training.
    assert config.train_cfg.val_interval == config.default_hooks.checkpoint.interval == 36
    assert times(config) == [('LinearLR', False, 0, 36, None), ('PolyLR', False, 36, 360, None)]
    assert config.default_hooks.logger.interval == 36


def test_a_long_training_keeps_its_warmup(folders: dict) -> None:
    config = read('upernet_micro_ade20k', folders, epochs=2000)
    assert times(config) == [('LinearLR', False, 0, 1500, None), ('PolyLR', False, 1500, 36000, None)]
    assert config.default_hooks.logger.interval == 50


def test_a_training_that_counts_epochs(folders: dict) -> None:
    config = read('mask_rcnn_micro_coco', folders, epochs=6)
    assert config.train_cfg.max_epochs == 6 and config.train_cfg.val_interval == 1
    # Of 108 iterations; milestones after 8 and 11 of 12 epochs.
    assert times(config) == [('LinearLR', False, 0, 10, None), ('MultiStepLR', False, 0, 108, [72, 99])]


def test_a_single_epoch_of_few_images(folders: dict) -> None:
    config = read('dino_4scale_micro_coco', folders, epochs=1)
    assert config.train_cfg.max_epochs == 1
    assert times(config) == [('MultiStepLR', False, 0, 18, [16])]
    config = read('upernet_micro_ade20k', folders, epochs=1)
    # A warm-up of a single iteration is none.
    assert config.train_cfg.val_interval == 18 and times(config) == [('PolyLR', False, 1, 18, None)]


def test_batch_and_processes(folders: dict) -> None:
    options = {'train_dataloader.batch_size': 4, 'train_cfg.val_interval': 7}
    config = read('upernet_micro_ade20k', folders, epochs=10, cfg_options=options)
    assert config.train_cfg == dict(type='IterBasedTrainLoop', max_iters=90, val_interval=7)
    set_epochs(config, 10, num_processes=2)
    assert config.train_cfg.max_iters == 50  # 36 images are 4.5 steps of 8


def test_entries_of_schedulers_beside_epochs(folders: dict) -> None:
    """They would be epochs of the config, where the schedulers count iterations by then."""
    message = '--epochs changes all schedulers, so that --cfg-options param_scheduler.1.milestones would be in'
    with pytest.raises(InputError, match=message):
        read('mask_rcnn_micro_coco', folders, epochs=20, cfg_options={'param_scheduler.1.milestones': [15, 18]})


def test_epochs_of_a_quick_trial(folders: dict) -> None:
    config = read('mask_rcnn_micro_coco', folders, mini=True, epochs=3)
    assert config.train_cfg.max_iters == 54 and config.train_cfg.type == 'IterBasedTrainLoop'
    assert times(config) == [('LinearLR', False, 0, 5, None), ('PolyLR', False, 5, 54, None)]


def test_schedulers_of_other_kinds(folders: dict) -> None:
    config = read('mask_rcnn_micro_coco', folders)
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


@pytest.mark.parametrize(
    ('name', 'epochs', 'steps', 'rate'),
    [
        ('upernet_micro_ade20k', 20, 360, 7.5e-4),  # 1e-3 * sqrt(200 / 360)
        ('upernet_micro_ade20k', 2, 36, 1e-3),
        ('upernet_micro_ade20k', 5000, 90000, 1e-4),
        ('mask_rcnn_micro_coco', 40, 720, 5.3e-4),
        ('mask2former_micro_ade20k', 100, 1800, 2e-4),
    ],
)
def test_rates_from_random_weights(folders: dict, name: str, epochs: int, steps: int, rate: float) -> None:
    """The longer a training, the lower its rate."""
    trained = dict(mini=True, epochs=epochs, dataloaders=('train_dataloader',))
    config = read(name, folders, **trained)
    assert num_steps(config) == config.param_scheduler[-1].end == steps
    assert config.optim_wrapper.optimizer.lr == rate
    options = {'optim_wrapper.optimizer.lr': 0.5}
    assert read(name, folders, cfg_options=options, **trained).optim_wrapper.optimizer.lr == 0.5


def test_steps_of_epochs(folders: dict) -> None:
    """Of a config's own schedule, which counts epochs of 18 steps."""
    options = {'train_cfg.max_epochs': 50, 'train_dataloader.batch_size': 2}
    trained = dict(from_scratch=True, dataloaders=('train_dataloader',))
    config = read('mask_rcnn_micro_coco', folders, cfg_options=options, **trained)
    assert num_steps(config) == 900
    assert num_steps(config, num_processes=4) == 250
    assert config.optim_wrapper.optimizer.lr == 4.7e-4


def test_an_incomplete_batch_that_is_left_out(folders: dict) -> None:
    """A loop that counts epochs has fewer steps then; one that counts iterations goes on with the next epoch."""
    options = {'train_dataloader.batch_size': 8}  # 36 images
    assert set_epochs(read('mask_rcnn_micro_coco', folders, cfg_options=options), 6) == 5
    options['train_dataloader.drop_last'] = True
    config = read('mask_rcnn_micro_coco', folders, epochs=6, cfg_options=options)
    assert times(config)[-1] == ('MultiStepLR', False, 0, 24, [16, 22]) and num_steps(config) == 24
    assert set_epochs(read('upernet_micro_ade20k', folders, cfg_options=options), 6) == 5
    with pytest.raises(InputError, match='^36 training images a process are less than a batch of 64'):
        read('mask_rcnn_micro_coco', folders, epochs=6, cfg_options={**options, 'train_dataloader.batch_size': 64})
