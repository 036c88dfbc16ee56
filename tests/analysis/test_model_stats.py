"""The tool model_stats on whole models."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from mmengine.config import Config

from bioattn_mm.analysis.model_stats import Network, default_size, multiply_adds, num_parameters, random_image
from bioattn_mm.training.config.mini import make_mini

from ..conftest import ROOT
from ..tools.running import InProcess

STATS = 'analysis/model_stats.py'


@pytest.mark.parametrize('name', ['mask2former_micro_ade20k', 'dino_4scale_micro_coco'])
def test_models_with_queries(name: str) -> None:
    config = make_mini(Config.fromfile(ROOT / 'configs' / 'transnext' / f'{name}.py'))
    config.model.backbone.arch = dict(embed_dims=(48, 96, 192, 384), num_heads=(2, 4, 8, 16), depths=(1, 1, 1, 1))
    network = Network(config)
    small, large = (multiply_adds(network, random_image((128, width)))['flops'] for width in (128, 192))
    assert 0 < small < large


CLASSIFIERS = ('micro_8xb128_in1k', 'micro-aaaa_8xb128_in1k-256px', 'small_8xb128_in1k-384px')


def test_table_of_two_models(root: Path, tmp_path: Path, tool: InProcess, run: Callable) -> None:
    configs = [root / 'tests' / 'tools' / f'{name}.py' for name in ('upernet_small', 'mask_rcnn_small')]
    printed, document, rows, whole = run('model_stats', *configs, '--size', 96, 160)
    backbones = run('model_stats', *configs, '--size', 96, 160, '--backbone', out='alone').document['models']
    assert document['part'] == 'whole model' and 'whole model, 96 x 160 pixels' in printed
    for config, model, row, backbone in zip(configs, document['models'], rows, backbones, strict=True):
        assert model['model'] == config.stem == row['model']
        assert {key: float(value) for key, value in row.items() if key != 'model'} == {
            key: value for key, value in model.items() if key != 'model'
        }
        network = Network(Config.fromfile(config))
        assert model['parameters'] == num_parameters(network) > model['backbone_parameters']
        assert model['flops'] > model['backbone_flops'] > backbone['layer_flops'] > 0
        assert model['flops'] > model['layer_flops'] > backbone['layer_flops'] and model['flops_of_size'] > 0
        # The backbone by itself costs what it does inside of the model.
        assert backbone == dict(
            model=config.stem,
            height=96,
            width=160,
            parameters=model['backbone_parameters'],
            flops=model['backbone_flops'],
            layer_flops=backbone['layer_flops'],
            flops_of_size=model['flops_of_size'],
        )
    line = tool.refused(tmp_path, STATS, *configs, '--out', whole)
    assert line == f'error: {whole / "model_stats.csv"} is there already: name another folder for --out'


def test_classifiers(root: Path, run: Callable) -> None:
    """Each at the size of its test images, without the lines that mmengine logs for every parameter."""
    configs = [root / 'configs' / 'transnext' / f'transnext-{name}.py' for name in CLASSIFIERS]
    options = ('--cfg-options', 'model.backbone.arch=micro', 'model.head.in_channels=384')
    printed, document, *_ = run('model_stats', *configs, *options)
    models = document['models']
    assert [(model['height'], model['width']) for model in models] == [(224, 224), (256, 256), (384, 384)]
    for model in models:
        assert model['flops'] - model['backbone_flops'] == 384 * 1000  # the head
        assert model['parameters'] - model['backbone_parameters'] == 385 * 1000
        assert model['flops'] > model['layer_flops'] > 0
    assert 'init_weights' not in printed


def test_table_of_a_folder(root: Path, tmp_path: Path, tool: InProcess) -> None:
    """As for the rows of an ablation: no files are written, and none are asked for."""
    (tmp_path / 'own').mkdir()
    base = root / 'configs' / 'transnext' / 'transnext-micro_8xb128_in1k.py'
    for mixer in ('ConvGLU', 'GLU', 'MLP'):
        model = f"model = dict(backbone=dict(channel_mixer=dict(type='bioattn_mm.{mixer}')))"
        (tmp_path / 'own' / f'{mixer.lower()}.py').write_text(f'_base_ = {str(base)!r}\n{model}\n')
    printed = tool(tmp_path, STATS, 'own', '--size', 64, 96)
    rows = [re.split(r' *[│┃] *', line)[1:-1] for line in printed.splitlines() if line.startswith('│')]
    assert [row[0] for row in rows] == ['convglu', 'glu', 'mlp']
    for row in rows:
        network = Network(Config.fromfile(tmp_path / 'own' / f'{row[0]}.py'))
        assert row[1] == f'{num_parameters(network) / 1e6:.4g}'
    assert float(rows[0][3]) > float(rows[1][3])  # the convolution of ConvGLU
    assert [path.name for path in tmp_path.iterdir()] == ['own']


def test_size_of_a_classifier_that_is_not_square() -> None:
    wide = [dict(type='Resize', scale=(256, 128)), dict(type='CenterCrop', crop_size=(224, 112))]
    loader = dict(dataset=dict(pipeline=wide))
    assert default_size(Config(dict(default_scope='mmpretrain', test_dataloader=loader))) == (112, 224)


def test_multiply_adds_of_the_layers_of_a_classifier() -> None:
    config = Config.fromfile(ROOT / 'configs' / 'convit' / 'convit-tiny_8xb128_in1k.py')
    config.model.backbone.arch = dict(embed_dims=8, num_layers=12, num_heads=2)
    config.model.head.in_channels = 8
    config.model.backbone.in_channels = 5
    network = Network(config)
    measured = multiply_adds(network, random_image((64, 96), network.in_channels))
    tokens, width = 4 * 6, 8
    embedding = tokens * 16 * 16 * 5 * width
    blocks = (10 * tokens + 2 * (tokens + 1)) * (4 + 8) * width**2
    assert measured['layer_flops'] == embedding + blocks + width * 1000
