"""The tools erf, attention_maps and locality, on small models of every system and on those of other libraries."""

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
from torch import nn

from bioattn_mm.analysis.conditions import Changes, Model
from bioattn_mm.analysis.models import OtherBackbone, Source, build_backbone, timm_config, with_initial_positions
from bioattn_mm.errors import InputError
from bioattn_mm.registry import MODELS

from ..tools.running import InProcess
from .small_backbones import ON_CPU, build, write_config


def save_checkpoint(path: Path, name: str) -> Path:
    """Weights of a backbone whose outputs are not normalised to a constant mean."""
    backbone = build(name)
    for parameter in backbone.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    torch.save({'state_dict': {f'backbone.{key}': value for key, value in backbone.state_dict().items()}}, path)
    return path


def test_fields_of_two_models(images: Path, tmp_path: Path, tool: InProcess, run: Callable) -> None:
    first, second = (write_config(tmp_path, name) for name in ('TransNeXt', 'GABViT'))
    checkpoint = save_checkpoint(tmp_path / 'transnext.pth', 'TransNeXt')
    both = (first, checkpoint, '--compare', second, '--size', 48, 80)
    printed, document, rows, out = run('erf', *both)
    outputs = [('transnext', index) for index in range(4)] + [('gabvit', index) for index in (1, 2)]
    assert [(row['model'], int(row['output'])) for row in rows] == outputs
    assert document['weights'] == {'transnext': str(checkpoint), 'gabvit': 'random weights'}
    assert document['images'] == 3
    arrays = np.load(out / 'erf.npz')
    for row, field in zip(rows, document['fields'], strict=True):
        assert arrays[f'{row["model"]}, output {row["output"]}'].shape == (48, 80)
        assert (row['height'], row['width']) == ('48', '80')
        areas = [field[f'area_{share}'] for share in (20, 50, 80, 99)]
        assert areas == sorted(areas) == [float(row[f'area_{share}']) for share in (20, 50, 80, 99)]
        assert 0 < areas[0] and areas[-1] <= 1
    # Further from the image a field is wider.
    assert float(rows[0]['area_50']) < float(rows[3]['area_50'])
    assert 'gabvit, random weights' in printed
    assert 'erf.csv is there already' in tool.refused(tmp_path, 'analysis/erf.py', first, '--out', out, *ON_CPU)
    # Random weights: the last norm of TransNeXt has a constant mean.
    words = (first, '--compare', second, '--output', -1, '--max-images', 1, '--size', 32, 48)
    printed, document, rows, _ = run('erf', *words, out='one')
    assert [(row['model'], int(row['output'])) for row in rows] == [('transnext', 3), ('gabvit', 2)]
    assert 'no field of output 3' in printed and document['fields'][0]['sigma_x'] is None


def test_maps_of_a_pixel(images: Path, tmp_path: Path, run: Callable) -> None:
    first, *others = (write_config(tmp_path, name) for name in ('TransNeXt', 'GABSwin', 'ConViT', 'VARS'))
    models = (first, *(word for config in others for word in ('--compare', config)))
    document = run('attention_maps', *models, '--layer', 1, '--query', 39, 31, '--max-images', 1).document
    assert document['weights'] == 'random weights' and not (tmp_path / 'out/consistency.csv').exists()
    results = {result['model']: result for result in document['images']}
    for (name, result), stride in zip(results.items(), (8, 4, 16, 16), strict=True):
        assert Path(result['image']).name == 'image_0.png'
        # The image is resized to 64 x 96 pixels.
        assert result['grid'] == [64 // stride, 96 // stride], name
        assert result['token'] == [64 // stride - 1, 50 // stride], name
    maps = {name: {panel['name']: panel for panel in result['maps']} for name, result in results.items()}
    steps = ['step 0', 'step 1', 'attention', *(f'strength, step {step}' for step in range(3))]
    assert list(maps['vars']) == steps and np.array(maps['vars'][steps[-1]]['values']).shape == (2, 4, 6)
    assert results['convit']['gates'] == pytest.approx([torch.sigmoid(torch.tensor(1.0)).item()] * 2)
    # One row of TransNeXt's window is outside. GABSwin has windows of 4 x 4 tokens, shifted by 2, of which the mask
    # leaves a part at the border.
    window, attention = maps['transnext']['window'], maps['gabswin']['attention']
    sides = ('top', 'bottom', 'left', 'right')
    assert [[panel[side] for side in sides] for panel in (window, attention)] == [[48, 64, 40, 64], [56, 64, 40, 56]]
    sums = [
        np.nansum(np.array(panel['values'], float), (1, 2))
        for panel in (window, maps['transnext']['pooled'], attention, *maps['convit'].values())
    ]
    for total in (sums[0] + sums[1], *sums[2:]):
        np.testing.assert_allclose(total, 1, rtol=1e-4)


def test_maps_of_several_layers_and_what_is_received(images: Path, tmp_path: Path, run: Callable) -> None:
    first, second, vars_ = (write_config(tmp_path, name) for name in ('TransNeXt', 'GABViT', 'VARS'))
    options = ('--images', images / 'image_1.png', '--size', 64, 96)
    received = ('--part', 'received', '--corrupt', 'fog:1', '--compare', vars_)
    results = run('attention_maps', first, '--layer', 1, *received, *options, out='received').document['images']
    attention, strength = (next(m for m in result['maps'] if m['name'] == 'received') for result in results[::2])
    # The tokens get 1 in all from a softmax, and any strength from VARS.
    np.testing.assert_allclose(np.sum(attention['values'], (1, 2)), 1, rtol=1e-4)
    assert np.array(strength['values']).shape == (2, 4, 6)
    results = run('attention_maps', second, '--layer', 0, -1, *options, out='layers').document['images']
    assert [result['layer'] for result in results] == ['blocks.0.attn', 'blocks.2.attn']
    assert {Path(result['image']).name for result in results} == {'image_1.png'}


# The measure of each system and the number of its heads.
MEASURES = dict(
    TransNeXt=('pooled_share', 1 + 2 + 3 + 3 + 4),
    GABSwin=('gaussian_amplitude gaussian_sigma', 2 * (1 + 2 + 4 + 8)),
    ConViT=('gate nonlocality_content nonlocality_position impact_position', 4 * 2),
    PerViT=('region impact_content impact_position omega_attention share_central', 4),
    VARS=('nonlocality_step_0 nonlocality_step_1 sparsity active_codes', 4),
    GABViT=('gaussian_amplitude gaussian_sigma impact_position', 6),
)


def test_locality_of_every_system(images: Path, tmp_path: Path, run: Callable) -> None:
    """Weights come from the file that a config starts from, where it is a local one."""
    checkpoint = save_checkpoint(tmp_path / 'vit.pth', 'GABViT')
    init_cfg = dict(type='Pretrained', checkpoint=str(checkpoint))
    configs = [write_config(tmp_path, name, init_cfg=init_cfg if name == 'GABViT' else None) for name in MEASURES]
    words = [word for config in configs for word in ('--compare', config)]
    options = ('--images', images, '--size', 48, 64, '--max-images', 2)
    printed, document, rows, _ = run('locality', *words[1:], *options)
    weights = dict.fromkeys(map(str.lower, MEASURES), 'random weights') | dict(gabvit=str(checkpoint))
    assert document['weights'] == weights
    assert document['images'] == 2 and len(document['heads']) == len(rows)
    for name, (measures, heads) in MEASURES.items():
        of_model = [row for row in rows if row['model'] == name.lower()]
        assert len(of_model) == heads
        found = {measure for measure, value in of_model[0].items() if value}
        assert {*measures.split(), 'layer', 'name', 'head', 'height', 'width', 'nonlocality'} <= found
    assert all(0 < float(row['nonlocality']) < np.hypot(int(row['height']), int(row['width'])) for row in rows)
    # The last layer of ConViT is one with a class token and without a gate.
    assert [bool(row['gate']) for row in rows if row['model'] == 'convit'] == [True] * 6 + [False] * 2
    assert 'means over heads' in printed

    config = write_config(tmp_path, 'GABViT', init_cfg=dict(init_cfg, checkpoint='https://example.org/vit.pth'))
    assert build_backbone(Config.fromfile(config))[1] == 'random weights'


@pytest.fixture
def classifier(images: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Config and checkpoint of a small ViT of mmpretrain."""
    arch = dict(embed_dims=16, num_layers=3, num_heads=2, feedforward_channels=32)
    model = dict(
        type='ImageClassifier',
        backbone=dict(type='VisionTransformer', img_size=32, patch_size=16, out_type='cls_token', arch=arch),
        head=dict(type='LinearClsHead', num_classes=4, in_channels=16),
        data_preprocessor=dict(num_classes=4, mean=[120, 110, 100], std=[60, 55, 50], to_rgb=True),
    )
    resize = dict(type='Resize', scale=(64, 48), keep_ratio=False)
    pipeline = [dict(type='LoadImageFromFile'), resize, dict(type='PackInputs')]
    dataset = dict(type='CustomDataset', data_root=str(images.parent), data_prefix='images', pipeline=pipeline)
    loaders = {f'{split}_dataloader': dict(dataset=dataset) for split in ('val', 'test')}
    config = Config(dict(default_scope='mmpretrain', model=model, **loaders, test_evaluator={}))
    config.dump(tmp_path / 'vit.py')
    init_default_scope('mmpretrain')
    network = MODELS.build(config.model)
    for parameter in network.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    torch.save(dict(state_dict=network.state_dict()), tmp_path / 'vit.pth')
    return tmp_path / 'vit.py', tmp_path / 'vit.pth'


def test_swin_beside_a_model_of_timm(images: Path, tmp_path: Path, run: Callable) -> None:
    """Their receptive fields and attention; the size is no multiple of a patch."""
    torch.save(timm.create_model('test_vit').state_dict(), tmp_path / 'timm.pth')
    config = Config.fromfile(write_config(tmp_path, 'GABViT'))
    swin = dict(embed_dims=8, depths=(2, 1, 1, 1), num_heads=(1, 1, 2, 2))
    config.model.backbone = dict(type='mmseg.SwinTransformer', **swin)
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


POSITIONS = dict(
    TransNeXt='window_bias position_bias',
    GABSwin='relative_position_bias_table gaussian',
    ConViT='pos_embed pos_proj',
    PerViT='position distance_embedding',
    GABViT='rel_pos',
    VARS='pos_embed',
)


@pytest.mark.parametrize(('name', 'parts'), POSITIONS.items())
def test_positions_alone_are_reset(name: str, parts: str, tmp_path: Path) -> None:
    """To the values of a new backbone; the others stay."""
    config = Config.fromfile(write_config(tmp_path, name))
    backbone, _ = build_backbone(config)
    initial = {key: value.clone() for key, value in backbone.named_parameters()}
    for parameter in backbone.parameters():
        parameter.data += 1
    changed = dict(with_initial_positions(backbone, config).named_parameters())
    reset = {key for key, value in changed.items() if torch.equal(value, initial[key])}
    assert reset == {key for key in initial if set(parts.split()) & set(key.split('.'))}
    assert all(torch.equal(changed[key], initial[key] + 1) for key in initial if key not in reset)


def test_outputs_that_are_no_maps() -> None:
    with pytest.raises(InputError, match='the backbone Flatten gives no feature maps'):
        OtherBackbone(nn.Flatten(), 'Flatten', ())(torch.zeros(1, 3, 8, 8))
