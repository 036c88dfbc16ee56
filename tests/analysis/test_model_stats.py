"""The tool model_stats on whole models."""

import re
from collections.abc import Callable
from pathlib import Path

from mmengine.config import Config

from bioattn_mm.analysis.model_stats import Network, default_size, multiply_adds, num_parameters, random_image

from ..tools.running import ROOT, InProcess

MODELS = ('upernet_small', 'mask_rcnn_small', 'mask2former_panoptic_small')
CLASSIFIERS = dict(aaaa='micro-aaaa_8xb128_in1k-256px', micro='micro_8xb128_in1k', small='small_8xb128_in1k-384px')
ARCH = dict(embed_dims=(8, 16, 24, 32), num_heads=(1, 2, 3, 4), depths=(1, 1, 1, 1))


def test_table_of_models_and_their_backbones(run: Callable) -> None:
    configs = [ROOT / 'tests' / 'tools' / f'{name}.py' for name in MODELS]
    printed, document, rows, _ = run('model_stats', *configs, '--size', 224, 288)
    backbones = run('model_stats', *configs, '--size', 224, 288, '--backbone', out='alone').document['models']
    assert document['part'] == 'whole model' and 'whole model, 224 x 288 pixels' in printed
    for config, model, row, backbone in zip(configs, document['models'], rows, backbones, strict=True):
        assert model['model'] == config.stem == row.pop('model')
        assert all(float(value) == model[key] for key, value in row.items())
        network = Network(Config.fromfile(config))
        assert model['parameters'] == num_parameters(network) > model['backbone_parameters']
        assert model['flops'] > model['backbone_flops'] > backbone['layer_flops'] > 0
        assert model['flops'] > model['layer_flops'] > backbone['layer_flops'] and model['flops_of_size'] > 0
        # The backbone by itself costs what it does inside of the model.
        assert all(backbone[key] == model[f'backbone_{key}'] for key in ('parameters', 'flops'))
        assert all(backbone[key] == model[key] for key in ('model', 'height', 'width', 'flops_of_size'))


def test_classifiers_of_a_folder(tmp_path: Path, tool: InProcess, run: Callable) -> None:
    """Each at the size of its test images, without the lines that mmengine logs for every parameter."""
    (tmp_path / 'own').mkdir()
    for name, config in CLASSIFIERS.items():
        base = ROOT / 'configs' / 'transnext' / f'transnext-{config}.py'
        model = f'model = dict(backbone=dict(arch=dict(_delete_=True, **{ARCH})), head=dict(in_channels=32))'
        (tmp_path / 'own' / f'{name}.py').write_text(f'_base_ = {str(base)!r}\n{model}\n')
    printed = tool(tmp_path, 'analysis/model_stats.py', 'own')
    assert [path.name for path in tmp_path.iterdir()] == ['own'] and 'init_weights' not in printed
    models = run('model_stats', 'own').document['models']
    sizes = {model['model']: (model['height'], model['width']) for model in models}
    assert sizes == dict(aaaa=(256, 256), micro=(224, 224), small=(384, 384))
    for model in models:
        assert model['flops'] - model['backbone_flops'] == 32 * 1000  # the head
        assert model['parameters'] - model['backbone_parameters'] == 33 * 1000
        assert re.search(f'{model["model"]} .* {model["parameters"] / 1e6:.3g}', printed)


def test_size_of_a_classifier_that_is_not_square() -> None:
    steps = [dict(type='Resize', scale=(256, 128)), dict(type='CenterCrop', crop_size=(224, 112))]
    loader = dict(dataset=dict(pipeline=steps))
    assert default_size(Config(dict(default_scope='mmpretrain', test_dataloader=loader))) == (112, 224)


def test_multiply_adds_of_the_layers_of_a_classifier() -> None:
    config = Config.fromfile(ROOT / 'configs' / 'convit' / 'convit-tiny_8xb128_in1k.py')
    config.model.backbone.update(arch=dict(embed_dims=8, num_layers=12, num_heads=2), in_channels=5)
    config.model.head.in_channels = 8
    network = Network(config)
    measured = multiply_adds(network, random_image((64, 96), network.in_channels))
    tokens, width = 4 * 6, 8
    embedding = tokens * 16 * 16 * 5 * width
    blocks = (10 * tokens + 2 * (tokens + 1)) * (4 + 8) * width**2
    assert measured['layer_flops'] == embedding + blocks + width * 1000
