"""What `--fraction` makes of a config."""

import math
from pathlib import Path

import pytest
from mmengine.config import Config

from bioattn_mm.errors import InputError
from bioattn_mm.training.config.samples import set_fraction


@pytest.fixture
def config(root: Path) -> Config:
    return Config.fromfile(root / 'configs/transnext/transnext-micro_8xb128_in1k.py')


def test_as_many_images_in_all(config: Config) -> None:
    dataset = config.train_dataloader.dataset
    set_fraction(config, 0.1)
    assert config.train_dataloader.dataset == dict(
        type='bioattn_mm.class_balanced_part', fraction=0.1, dataset=dataset
    )
    assert config.train_cfg.max_epochs == 3000
    assert [(scheduler.begin, scheduler.end) for scheduler in config.param_scheduler] == [(0, 50), (50, 3000)]
    # As often validated and saved as in the whole training.
    assert config.train_cfg.val_interval == config.default_hooks.checkpoint.interval == 10
    assert 'class_balanced_part' not in str(config.val_dataloader)


def test_other_schedules(config: Config) -> None:
    config.train_cfg.max_epochs = 100
    config.param_scheduler = [
        dict(type='LinearLR', by_epoch=False, begin=0, end=500),
        dict(type='MultiStepLR', milestones=[30, 60, 90]),
        dict(type='StepLR', step_size=30, begin=5, end=math.inf),
        dict(type='CosineRestartLR', periods=[30, 60]),
        dict(type='ExponentialLR', gamma=0.9),
    ]
    set_fraction(config, 0.3)
    assert config.train_cfg.max_epochs == 333
    warm_up, steps, step, restarts, exponential = config.param_scheduler
    assert (warm_up.begin, warm_up.end) == (0, 500)
    assert steps.milestones == [100, 200, 300]
    assert (step.step_size, step.begin, step.end) == (100, 17, math.inf)
    assert restarts.periods == [100, 200]
    assert exponential.gamma**333 == pytest.approx(0.9**100, rel=0.02)


def test_iterations_stay(config: Config) -> None:
    config.train_cfg = dict(type='IterBasedTrainLoop', max_iters=200, val_interval=100)
    config.param_scheduler = [dict(type='PolyLR', by_epoch=False, begin=0, end=200)]
    set_fraction(config, 0.5)
    assert (config.train_cfg.max_iters, config.train_cfg.val_interval) == (200, 100)
    assert config.param_scheduler[0].end == 200


def test_a_dataset_without_classes_of_images(root: Path, config: Config) -> None:
    detector = Config.fromfile(root / 'configs/transnext/mask_rcnn_tiny_coco.py')
    with pytest.raises(InputError, match='one class an image; mask_rcnn_tiny_coco.py has CocoDataset'):
        set_fraction(detector, 0.5)
    with pytest.raises(InputError, match='above 0 and at most 1, got 10.0'):
        set_fraction(config, 10.0)
