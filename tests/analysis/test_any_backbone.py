"""The tools on backbones of other libraries, under corruption and attack, and with positions that are unlearned."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.registry import init_default_scope
from torch import Tensor, nn

from bioattn_mm.analysis.conditions import Changes, Model
from bioattn_mm.analysis.images import stride_of
from bioattn_mm.analysis.models import (
    OtherBackbone,
    Source,
    build_backbone,
    timm_config,
    with_initial_positions,
)
from bioattn_mm.errors import InputError
from bioattn_mm.registry import MODELS

from .small_backbones import BACKBONES, write_config

SWIN = dict(type='mmseg.SwinTransformer', embed_dims=8, depths=(2, 1, 1, 1), num_heads=(1, 1, 2, 2))
CLASSIFIER = """
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='VisionTransformer', img_size=32, patch_size=16, out_type='cls_token',
        arch=dict(embed_dims=16, num_layers=3, num_heads=2, feedforward_channels=32),
    ),
    head=dict(type='LinearClsHead', num_classes=4, in_channels=16),
    data_preprocessor=dict(num_classes=4, mean=[120, 110, 100], std=[60, 55, 50], to_rgb=True),
)
pipeline = [
    dict(type='LoadImageFromFile'), dict(type='Resize', scale=(64, 48), keep_ratio=False), dict(type='PackInputs')
]
val_dataloader = dict(dataset=dict(type='CustomDataset', data_root='data', data_prefix='images', pipeline=pipeline))
test_dataloader = val_dataloader
test_evaluator = dict()
"""


@pytest.fixture
def classifier(images: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Config and checkpoint of a small ViT of mmpretrain."""
    config = tmp_path / 'vit.py'
    config.write_text(CLASSIFIER.replace("'data'", repr(str(images.parent))))
    init_default_scope('mmpretrain')
    model = MODELS.build(Config.fromfile(config).model)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'vit.pth')
    return config, tmp_path / 'vit.pth'


def test_swin_beside_a_model_of_timm(images: Path, tmp_path: Path, run: Callable) -> None:
    """Their receptive fields, attention and locality; the size is no multiple of a patch."""
    model = timm.create_model('test_vit')
    torch.save(model.state_dict(), tmp_path / 'timm.pth')
    config = Config.fromfile(write_config(tmp_path, 'GABViT'))
    config.model.backbone = SWIN
    config.dump(tmp_path / 'swin.py')
    options = ('--max-images', 1, '--size', 50, 70)
    both = (tmp_path / 'swin.py', '--timm', 'test_vit', 'timm.pth', *options)
    _, document, _, folder = run('erf', *both, out='erf')
    assert document['weights'] == {'swin': 'random weights', 'test_vit': 'timm.pth'}
    # Of the six blocks of the ViT four are outputs.
    places = [('swin', stage) for stage in range(4)] + [('test_vit', block) for block in (0, 2, 3, 5)]
    assert [(row['model'], row['output']) for row in document['fields']] == places
    assert np.load(folder / 'erf.npz')['test_vit, output 5'].any()

    document = run('attention_maps', *both, '--layer', 0, '--query', 20, 30, out='maps').document
    swin, vit = document['images']
    assert swin['layer'] == 'model.stages.0.blocks.0.attn.w_msa' and vit['layer'] == 'model.blocks.0.attn'
    # The image is 64 x 64 after the data preprocessor's padding for the one, 50 x 70 for the other.
    assert vit['grid'] == [4, 5] and vit['token'] == [1, 2]
    (window,) = swin['maps']
    np.testing.assert_allclose(np.nansum(np.array(window['values'], float), (1, 2)), 1, rtol=1e-4)
    assert [window[side] for side in ('top', 'bottom', 'left', 'right')] == [0, 28, 28, 56]

    rows = run('locality', *both[1:], '--images', images, out='locality').rows
    assert len(rows) == len(model.blocks) * model.blocks[0].attn.num_heads
    assert all(0 < float(row['nonlocality']) < 6 for row in rows)


def test_the_checkpoint_of_a_training_with_a_backbone_of_timm(tmp_path: Path) -> None:
    """Which has a part `model`, as what analysis puts around it."""
    config = Config.fromfile(write_config(tmp_path, 'GABViT'))
    config.model.backbone = dict(type='bioattn_mm.TimmBackbone', model_name='test_vit')
    trained = MODELS.build(config.model.backbone)
    weights = {f'backbone.{name}': torch.randn_like(value) for name, value in trained.state_dict().items()}
    torch.save(dict(state_dict=weights), tmp_path / 'segmentor.pth')
    backbone, _ = build_backbone(config, str(tmp_path / 'segmentor.pth'))
    loaded = backbone.model.state_dict()
    assert loaded.keys() == trained.state_dict().keys()
    assert all(torch.equal(loaded[name], weights[f'backbone.{name}']) for name in loaded)


def test_corrupted_and_attacked_images(classifier: tuple[Path, Path], images: Path, run: Callable) -> None:
    conditions = ('--corrupt', 'gaussian_noise:5', '--attack', 'pgd', '--epsilon', '8/255')
    options = ('--size', 48, 64, '--max-images')
    written = run('attention_maps', *classifier, *options, 2, *conditions, out='maps')
    results = written.document['images']
    assert [result['condition'] for result in results] == ['clean', 'gaussian_noise:5', 'pgd 8/255'] * 2
    maps = [np.array(result['maps'][0]['values']) for result in results]
    rows = csv.DictReader((written.folder / 'consistency.csv').read_text().splitlines())
    for (changed, clean), row in zip(((1, 0), (2, 0), (4, 3), (5, 3)), rows, strict=True):
        # Each token has the same number of pixels, so that the correlation is that of the tokens' weights.
        wanted = np.corrcoef(maps[clean].mean(0).ravel(), maps[changed].mean(0).ravel())[0, 1]
        found = results[changed]['consistency']
        assert found['correlation'] == pytest.approx(wanted, abs=1e-3) and wanted < 1
        assert float(row['correlation']) == found['correlation']
        assert len(found['heads']) == 2 and 0 <= float(row['iou']) <= 1
    assert 'means over the images' in written.printed

    conditions = ('--corrupt', 'fog:5', '--reinit-position')
    fields = run('erf', *classifier, *options, 1, *conditions, out='erf').document['fields']
    assert [row['condition'] for row in fields] == ['clean', 'fog:5', 'position embeddings re-initialised']
    assert 'iou' not in fields[0] and all(-1 <= row['correlation'] < 1 for row in fields[1:])


def test_attack_raises_the_loss_of_the_prediction(classifier: tuple[Path, Path], images: Path) -> None:
    """It changes no pixel by more than epsilon; the same for a model of timm."""
    config, checkpoint = Config.fromfile(classifier[0]), str(classifier[1])
    for source in (Source('model', config, checkpoint), Source('model', timm_config('test_vit'), None)):
        readers = Model.build(source, Changes([], 'fgsm', 6.0), (48, 64)).readers
        before, after = (read(images / 'image_0.png') for read in readers.values())
        change = (after.batch['inputs'][0] - before.batch['inputs'][0].float()).abs()
        assert change.max() == pytest.approx(6) and after.inputs.shape == before.inputs.shape
        assert np.abs(after.pixels.astype(int) - before.pixels).max() <= 6
        logits = [readers['fgsm 6/255'].model(image.inputs, mode='tensor') for image in (before, after)]
        losses = [F.cross_entropy(values, logits[0].argmax(1)).item() for values in logits]
        assert losses[1] > losses[0]


@pytest.mark.parametrize(
    ('name', 'parts'),
    dict(
        TransNeXt='window_bias position_bias',
        GABSwin='relative_position_bias_table gaussian',
        ConViT='pos_embed pos_proj',
        PerViT='position distance_embedding',
        GABViT='rel_pos',
        VARS='pos_embed',
    ).items(),
)
def test_positions_alone_are_reset(name: str, parts: str) -> None:
    """To the values of a new backbone; the others stay."""
    settings = dict(type=f'bioattn_mm.{name}', **BACKBONES[name])
    config = Config(dict(default_scope='mmseg', model=dict(backbone=settings)))
    backbone, _ = build_backbone(config)
    initial = {key: value.clone() for key, value in backbone.named_parameters()}
    for parameter in backbone.parameters():
        parameter.data += 1
    changed = dict(with_initial_positions(backbone, config).named_parameters())
    reset = {key for key, value in changed.items() if torch.equal(value, initial[key])}
    assert reset == {key for key in initial if set(parts.split()) & set(key.split('.'))}
    assert all(torch.equal(changed[key], initial[key] + 1) for key in initial if key not in reset)


def test_stride_of_any_grid() -> None:
    assert stride_of((3, 5), (48, 70)) == 16
    assert stride_of((7, 12), (98, 168)) == 14
    assert stride_of((6, 10), (98, 168)) == 16  # rounded down
    with pytest.raises(ValueError, match='no stride gives a grid'):
        stride_of((3, 9), (48, 64))


def test_outputs_that_are_no_maps() -> None:
    class Pooled(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (x.mean((2, 3)),)

    with pytest.raises(InputError, match='the backbone Pooled gives no feature maps'):
        OtherBackbone(Pooled(), 'Pooled', ())(torch.zeros(1, 3, 8, 8))
