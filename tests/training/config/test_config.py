"""What the command line makes of a config."""

from pathlib import Path

import pytest
from mmengine.config import Config

from bioattn_mm.errors import InputError
from bioattn_mm.training.config import loading
from bioattn_mm.training.config.loading import read_config, set_bias_mode
from bioattn_mm.training.config.schedule import start_from_scratch


def load(root: Path, name: str, *, options: dict | None = None, **kwargs) -> dict:
    """The backbone of `load_config` with these options of the command line."""
    config = str(root / f'configs/transnext/{name}.py')
    return loading.load_config(config, cfg_options=options, **kwargs).model.backbone


@pytest.mark.parametrize('name', ['mask_rcnn_micro_coco', 'dino_5scale_base_coco', 'upernet_small_ade20k'])
def test_multi_scale_testing_extrapolates(root: Path, name: str) -> None:
    assert load(root, name).bias_mode == 'interpolate'
    assert load(root, name, tta=True).bias_mode == 'extrapolate'


def test_the_command_line_wins_over_the_settings_of_multi_scale_testing(root: Path) -> None:
    name = 'mask2former_tiny_ade20k'
    assert load(root, name, tta=True, bias_mode='interpolate').bias_mode == 'interpolate'
    options = {'model.backbone.bias_mode': 'interpolate'}
    assert load(root, name, tta=True, options=options).bias_mode == 'interpolate'


@pytest.mark.parametrize('name', ['upernet_tiny_ade20k', 'transnext-micro_8xb128_in1k'])
def test_miniature_from_a_file_of_weights(root: Path, name: str) -> None:
    """It starts from random weights, unless the command line names some."""
    assert load(root, name, mini=True).init_cfg is None
    options = {'model.backbone.init_cfg.checkpoint': 'epoch_300.pth'}
    for mini in (False, True):
        backbone = load(root, name, mini=mini, options=options)
        assert backbone.init_cfg == dict(type='Pretrained', checkpoint='epoch_300.pth')


def test_weights_of_a_whole_model(root) -> None:
    config = str(root / 'configs/transnext/transnext-micro_8xb128_in1k.py')
    config = loading.load_config(config, cfg_options={'model.init_cfg.checkpoint': 'epoch_300.pth'})
    assert config.model.init_cfg == dict(type='Pretrained', checkpoint='epoch_300.pth')
    assert 'init_cfg' not in config.model.backbone


@pytest.mark.parametrize(
    ('name', 'pool_size'), [('upernet_tiny_ade20k', (16, 16)), ('mask_rcnn_tiny_coco', (25, 25))]
)
def test_linear_mode_has_the_pooled_grid_of_training(root: Path, name: str, pool_size: tuple) -> None:
    backbone = load(root, name, bias_mode='linear')
    assert (backbone.bias_mode, backbone.pool_size) == ('extrapolate', pool_size)


def test_pooled_grid_of_an_oblong() -> None:
    config = Config(dict(model=dict(backbone=dict(type='TransNeXt', img_size=(224, 480)))))
    set_bias_mode(config, 'linear')
    assert config.model.backbone.pool_size == (7, 15)
    set_bias_mode(config, 'interpolate')
    assert config.model.backbone.pool_size is None


@pytest.mark.parametrize(
    ('name', 'pool_size'),
    [
        ('transnext-tiny_8xb128_in1k', (7, 7)),
        ('transnext-base_8xb128_in1k-384px', (12, 12)),
        ('transnext-micro-aaaa_8xb128_in1k-256px', (4, 4)),
    ],
)
def test_linear_mode_of_classifiers_has_the_pooled_grid_of_the_paper(root: Path, name: str, pool_size: tuple) -> None:
    """1/32 of the training size, 1/64 of it for A-A-A-A (TransNeXt, tables 3 and 9, appendix D.2)."""
    assert load(root, name, bias_mode='linear').pool_size == pool_size


@pytest.mark.parametrize(
    ('backbone', 'mode', 'message'),
    [
        ('ResNet', 'linear', '--bias-mode is for configs with a bioattn_mm.TransNeXt backbone'),
        ('bioattn_mm.TransNeXt', 'cubic', "one of extrapolate, interpolate, linear, unscaled, got 'cubic'"),
    ],
)
def test_bias_modes_that_are_refused(backbone: str, mode: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        set_bias_mode(Config(dict(model=dict(backbone=dict(type=backbone)))), mode)


def test_random_weights_in_place_of_a_whole_model(root: Path) -> None:
    config = read_config(str(root / 'configs/transnext/upernet_micro_ade20k.py'))
    config.load_from = 'detector.pth'
    start_from_scratch(config)
    assert config.load_from is None
