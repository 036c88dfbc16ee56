"""The tools erf, attention_maps and locality on small models of every system: what they write, what they refuse."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

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
    line = tool.refused(tmp_path, 'analysis/erf.py', first, '--out', out, *ON_CPU)
    assert line == f'error: {out / "erf.csv"} is there already: name another folder for --out'
    # Random weights: the last norm of TransNeXt has a constant mean.
    words = (first, '--compare', second, '--output', -1, '--max-images', 1, '--size', 32, 48)
    printed, document, rows, _ = run('erf', *words, out='one')
    assert [(row['model'], int(row['output'])) for row in rows] == [('transnext', 3), ('gabvit', 2)]
    assert 'no field of output 3' in printed and document['fields'][0]['sigma_x'] is None


@pytest.mark.parametrize('name', ['TransNeXt', 'GABSwin', 'ConViT', 'VARS'])
def test_maps_of_a_pixel(name: str, images: Path, tmp_path: Path, run: Callable) -> None:
    options = ('--layer', 1, '--query', 39, 31, '--max-images', 1)
    _, document, _, out = run('attention_maps', write_config(tmp_path, name), *options)
    assert document['weights'] == 'random weights' and not (out / 'consistency.csv').exists()
    (result,) = document['images']
    assert Path(result['image']).name == 'image_0.png'
    stride = {'TransNeXt': 8, 'GABSwin': 4}.get(name, 16)
    # The image is resized to 64 x 96 pixels.
    assert result['grid'] == [64 // stride, 96 // stride]
    assert result['token'] == [64 // stride - 1, 50 // stride]
    maps = {panel['name']: panel for panel in result['maps']}
    sums = {key: np.nansum(np.array(panel['values'], float), (1, 2)) for key, panel in maps.items()}
    if name == 'VARS':
        assert list(maps) == ['step 0', 'step 1', 'attention', *(f'strength, step {step}' for step in range(3))]
        assert np.array(maps['strength, step 2']['values']).shape == (2, 4, 6)
    elif name == 'TransNeXt':
        np.testing.assert_allclose(sums['window'] + sums['pooled'], 1, rtol=1e-4)
    else:
        for key in ('attention',) if name == 'GABSwin' else ('content', 'position', 'attention'):
            np.testing.assert_allclose(sums[key], 1, rtol=1e-4)
    if name == 'ConViT':
        assert result['gates'] == pytest.approx([torch.sigmoid(torch.tensor(1.0)).item()] * 4)
    # One row of TransNeXt's window is outside. GABSwin has windows of 4 x 4 tokens, shifted by 2, of which the mask
    # leaves a part at the border.
    places = dict(TransNeXt=('window', [48, 64, 40, 64]), GABSwin=('attention', [56, 64, 40, 56]))
    if name in places:
        part, place = places[name]
        assert [maps[part][side] for side in ('top', 'bottom', 'left', 'right')] == place


def test_maps_of_several_layers_and_models(images: Path, tmp_path: Path, run: Callable) -> None:
    first, second, vars_ = (write_config(tmp_path, name) for name in ('TransNeXt', 'GABViT', 'VARS'))
    options = ('--images', images / 'image_1.png', '--size', 64, 96)
    received = ('--part', 'received', '--corrupt', 'fog:1', '--compare', vars_)
    results = run('attention_maps', first, '--layer', 1, *received, *options, out='received').document['images']
    attention, strength = (next(m for m in result['maps'] if m['name'] == 'received') for result in results[::2])
    # The tokens get 1 in all from a softmax, and any strength from VARS.
    np.testing.assert_allclose(np.sum(attention['values'], (1, 2)), 1, rtol=1e-4)
    assert np.array(strength['values']).shape == (2, 4, 6)
    layers = (second, '--layer', 0, -1), [('gabvit', 'blocks.0.attn'), ('gabvit', 'blocks.2.attn')]
    models = (first, '--layer', 2, '--compare', second), [('transnext', 'stages.2.blocks.0.attn'), layers[1][1]]
    for out, (words, expected) in dict(layers=layers, models=models).items():
        results = run('attention_maps', *words, *options, out=out).document['images']
        assert [(result['model'], result['layer']) for result in results] == expected
        assert {Path(result['image']).name for result in results} == {'image_1.png'}


# The measure of each system and the number of its heads.
MEASURES = dict(
    TransNeXt=('pooled_share', 1 + 2 + 3 + 4),
    GABSwin=('gaussian_amplitude gaussian_sigma', 2 * (1 + 2 + 2 + 2)),
    ConViT=('gate nonlocality_content nonlocality_position impact_position', 4 * 4),
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
    assert [bool(row['gate']) for row in rows if row['model'] == 'convit'] == [True] * 12 + [False] * 4
    assert 'means over heads' in printed

    config = write_config(tmp_path, 'GABViT', init_cfg=dict(init_cfg, checkpoint='https://example.org/vit.pth'))
    document = run('locality', config, '--max-images', 1, out='of_url').document
    assert document['weights'] == dict(gabvit='random weights')
