"""What the command line makes of the backbone of a config: mode of the position bias, weights."""

import pytest
from mmengine.config import Config

from bioattn_mm.training.config.loading import load_config, set_bias_mode


def backbone_of(name: str, **kwargs) -> dict:
    return load_config(f'transnext/{name}', **kwargs).model.backbone


def test_multi_scale_testing_extrapolates_unless_the_command_line_says_how() -> None:
    name = 'mask2former_tiny_ade20k'
    assert backbone_of(name).bias_mode == 'interpolate'
    assert backbone_of(name, tta=True).bias_mode == 'extrapolate'
    for options in (dict(bias_mode='interpolate'), dict(cfg_options={'model.backbone.bias_mode': 'interpolate'})):
        assert backbone_of(name, tta=True, **options).bias_mode == 'interpolate'


@pytest.mark.parametrize('name', ['upernet_tiny_ade20k', 'transnext-micro_8xb128_in1k'])
def test_miniature_from_a_file_of_weights(name: str) -> None:
    """It starts from random weights, unless the command line names some."""
    assert backbone_of(name, mini=True).init_cfg is None
    options = {'model.backbone.init_cfg.checkpoint': 'epoch_300.pth'}
    for mini in (False, True):
        weights = backbone_of(name, mini=mini, cfg_options=options).init_cfg
        assert weights == dict(type='Pretrained', checkpoint='epoch_300.pth')
    options = {'model.init_cfg.checkpoint': 'epoch_300.pth'}  # of a whole model
    model = load_config('transnext/transnext-micro_8xb128_in1k', cfg_options=options).model
    assert model.init_cfg == weights and 'init_cfg' not in model.backbone


def test_linear_mode_has_the_pooled_grid_of_training() -> None:
    """1/32 of the training size, 1/64 of it for A-A-A-A (TransNeXt, tables 3 and 9, appendix D.2)."""
    for name, side in (
        ('mask_rcnn_tiny_coco', 25),
        ('transnext-tiny_8xb128_in1k', 7),
        ('transnext-micro-aaaa_8xb128_in1k-256px', 4),
    ):
        backbone = backbone_of(name, bias_mode='linear')
        assert (backbone.bias_mode, backbone.pool_size) == ('extrapolate', (side, side))
    config = Config(dict(model=dict(backbone=dict(type='TransNeXt', img_size=(224, 480)))))
    set_bias_mode(config, 'linear')
    assert config.model.backbone.pool_size == (7, 15)
    set_bias_mode(config, 'interpolate')
    assert config.model.backbone.pool_size is None
