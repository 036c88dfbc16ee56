"""The tools on backbones of other libraries, under corruption and attack, and with positions that are unlearned."""

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from torch import Tensor, nn

from bioattn_mm.analysis.images import stride_of
from bioattn_mm.analysis.models import POSITION, Source, build_backbone, timm_config, with_initial_positions
from bioattn_mm.errors import InputError
from bioattn_mm.registry import MODELS

from ..tools.running import InProcess
from .small_backbones import BACKBONES
from .tool_runs import ERF, LOCALITY, MAPS, ON_CPU, check_drawing, read_csv, write_config

SWIN = dict(type='mmseg.SwinTransformer', embed_dims=8, depths=(2, 1, 1, 1), num_heads=(1, 1, 2, 2))
CLASSIFIER = """
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    backbone=dict(type='VisionTransformer', arch={arch!r}, img_size=32, patch_size=16, out_type='cls_token'),
    head=dict(type='LinearClsHead', num_classes=4, in_channels=16),
    data_preprocessor=dict(num_classes=4, mean=[120, 110, 100], std=[60, 55, 50], to_rgb=True),
)
pipeline = [
    dict(type='LoadImageFromFile'), dict(type='Resize', scale=(64, 48), keep_ratio=False), dict(type='PackInputs')
]
val_dataloader = dict(dataset=dict(type='CustomDataset', data_root={root!r}, data_prefix='images', pipeline=pipeline))
test_dataloader = val_dataloader
test_evaluator = dict()
"""
ARCH = dict(embed_dims=16, num_layers=3, num_heads=2, feedforward_channels=32)


@pytest.fixture
def classifier(images: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Config and checkpoint of a small ViT of mmpretrain."""
    config = tmp_path / 'vit.py'
    config.write_text(CLASSIFIER.format(arch=ARCH, root=str(images.parent)))
    init_default_scope('mmpretrain')
    model = MODELS.build(Config.fromfile(config).model)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'vit.pth')
    return config, tmp_path / 'vit.pth'


def write_swin(folder: Path) -> Path:
    path = write_config(folder, 'GABViT')
    config = Config.fromfile(path)
    config.model.backbone = SWIN
    config.dump(folder / 'swin.py')
    return folder / 'swin.py'


def test_swin_beside_a_model_of_timm(images: Path, tmp_path: Path, tool: InProcess) -> None:
    """Their receptive fields, attention and locality; the size is no multiple of a patch."""
    weights = timm.create_model('test_vit').state_dict()
    torch.save(weights, tmp_path / 'timm.pth')
    options = ('--max-images', 1, '--size', 50, 70, *ON_CPU)
    both = (write_swin(tmp_path), '--timm', 'test_vit', 'timm.pth')
    tool(tmp_path, ERF, *both, *options, '--out', 'erf')
    document = json.loads((tmp_path / 'erf' / 'erf.json').read_text())
    assert document['weights'] == {'swin': 'random weights', 'test_vit': 'timm.pth'}
    rows = document['fields']
    # Of the six blocks of the ViT four are outputs.
    places = [('swin', stage) for stage in range(4)] + [('test_vit', block) for block in (0, 2, 3, 5)]
    assert [(row['model'], row['output']) for row in rows] == places
    assert np.load(tmp_path / 'erf' / 'erf.npz')['test_vit, output 5'].any()

    tool(tmp_path, MAPS, *both, *options, '--layer', 0, '--query', 20, 30, '--out', 'maps')
    swin, vit = json.loads((tmp_path / 'maps' / 'attention_maps.json').read_text())['images']
    assert swin['layer'] == 'model.stages.0.blocks.0.attn.w_msa' and vit['layer'] == 'model.blocks.0.attn'
    # The image is 64 x 64 after the data preprocessor's padding for the one, 50 x 70 for the other.
    assert vit['grid'] == [4, 5] and vit['token'] == [1, 2]
    (window,) = swin['maps']
    np.testing.assert_allclose(np.nansum(np.array(window['values'], float), (1, 2)), 1, rtol=1e-4)
    assert [window[side] for side in ('top', 'bottom', 'left', 'right')] == [0, 28, 28, 56]
    check_drawing(tmp_path / 'maps' / vit['drawing'])

    tool(tmp_path, LOCALITY, '--timm', 'test_vit', 'timm.pth', '--images', images, *options, '--out', 'locality')
    rows = read_csv(tmp_path / 'locality' / 'locality.csv')
    model = timm.create_model('test_vit')
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


def test_corrupted_and_attacked_images(
    classifier: tuple[Path, Path], images: Path, tmp_path: Path, tool: InProcess
) -> None:
    options = ('--max-images', 2, '--size', 48, 64, '--corrupt', 'gaussian_noise:5', '--attack', 'pgd', '--epsilon')
    states = ['clean', 'gaussian_noise:5', 'pgd 8/255']
    printed = tool(tmp_path, MAPS, *classifier, *options, '8/255', '--out', 'maps', *ON_CPU)
    results = json.loads((tmp_path / 'maps' / 'attention_maps.json').read_text())['images']
    assert [result['condition'] for result in results] == states * 2
    maps = [np.array(result['maps'][0]['values']) for result in results]
    rows = read_csv(tmp_path / 'maps' / 'consistency.csv')
    for result, values, clean, row in zip(
        (results[1], results[2], results[4], results[5]),
        (maps[1], maps[2], maps[4], maps[5]),
        (maps[0], maps[0], maps[3], maps[3]),
        rows,
        strict=True,
    ):
        # Each token has the same number of pixels, so that the correlation is that of the tokens' weights.
        wanted = np.corrcoef(clean.mean(0).ravel(), values.mean(0).ravel())[0, 1]
        assert result['consistency']['correlation'] == pytest.approx(wanted, abs=1e-3) and wanted < 1
        assert float(row['correlation']) == result['consistency']['correlation']
        assert len(result['consistency']['heads']) == 2 and 0 <= float(row['iou']) <= 1
    check_drawing(tmp_path / 'maps' / results[0]['drawing'])
    assert 'means over the images' in printed

    options = ('--max-images', 1, '--size', 48, 64, '--corrupt', 'fog:5', '--reinit-position', *ON_CPU)
    tool(tmp_path, ERF, *classifier, *options, '--out', 'erf')
    fields = json.loads((tmp_path / 'erf' / 'erf.json').read_text())['fields']
    assert [row['condition'] for row in fields] == ['clean', 'fog:5', 'position embeddings re-initialised']
    assert 'iou' not in fields[0] and all(-1 <= row['correlation'] < 1 for row in fields[1:])
    check_drawing(tmp_path / 'erf' / 'erf.png')


def test_attack_raises_the_loss_of_the_prediction(classifier: tuple[Path, Path], images: Path) -> None:
    """It changes no pixel by more than epsilon; the same for a model of timm."""
    from bioattn_mm.analysis.conditions import Changes, Model

    config = Config.fromfile(classifier[0])
    for of_model, checkpoint in ((config, str(classifier[1])), (timm_config('test_vit'), None)):
        changes = Changes([], 'fgsm', 6.0)
        readers = Model.build(Source('model', of_model, checkpoint), changes, (48, 64)).readers
        before, after = (read(images / 'image_0.png') for read in readers.values())
        change = (after.batch['inputs'][0] - before.batch['inputs'][0].float()).abs()
        assert change.max() == pytest.approx(6) and after.inputs.shape == before.inputs.shape
        model = readers['fgsm 6/255'].model
        logits = [model(image.inputs, mode='tensor') for image in (before, after)]
        label = logits[0].argmax(1)
        losses = [torch.nn.functional.cross_entropy(values, label).item() for values in logits]
        assert losses[1] > losses[0]
        assert np.abs(after.pixels.astype(int) - before.pixels).max() <= 6


@pytest.mark.parametrize('name', BACKBONES)
def test_positions_alone_are_reset(name: str) -> None:
    """To the values of a new backbone; the others stay."""
    settings = dict(type=f'bioattn_mm.{name}', **BACKBONES[name])
    config = Config(dict(default_scope='mmseg', model=dict(backbone=settings)))
    backbone, _ = build_backbone(config)
    initial = {key: value.clone() for key, value in backbone.named_parameters()}
    for parameter in backbone.parameters():
        parameter.data += 1
    changed = dict(with_initial_positions(backbone, config).named_parameters())
    reset = {key for key, value in changed.items() if torch.equal(value, initial[key])}
    assert reset == {key for key in initial if any(map(POSITION.fullmatch, key.split('.')))}
    parts = dict(
        TransNeXt={'window_bias', 'position_bias'},
        GABSwin={'relative_position_bias_table', 'gaussian'},
        ConViT={'pos_embed', 'pos_proj'},
        PerViT={'position', 'distance_embedding'},
        GABViT={'rel_pos'},
        VARS={'pos_embed'},
    )
    assert all(any(part in key.split('.') for key in reset) for part in parts[name])
    assert all(set(key.split('.')) & parts[name] for key in reset)
    torch.testing.assert_close(
        [changed[key] for key in initial if key not in reset],
        [initial[key] + 1 for key in initial if key not in reset],
    )


def test_stride_of_any_grid() -> None:
    assert stride_of((3, 5), (48, 70)) == 16
    assert stride_of((7, 12), (98, 168)) == 14
    assert stride_of((6, 10), (98, 168)) == 16  # rounded down
    with pytest.raises(ValueError, match='no stride gives a grid'):
        stride_of((3, 9), (48, 64))


def test_outputs_that_are_no_maps() -> None:
    from bioattn_mm.analysis.models import OtherBackbone

    class Pooled(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (x.mean((2, 3)),)

    with pytest.raises(InputError, match='the backbone Pooled gives no feature maps'):
        OtherBackbone(Pooled(), 'Pooled', ())(torch.zeros(1, 3, 8, 8))
