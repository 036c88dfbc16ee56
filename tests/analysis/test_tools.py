"""The tools erf, attention_maps and locality on small models of every system: what they write, what they refuse."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bioattn_mm.registry import MODELS

from ..tools.running import InProcess
from .small_backbones import BACKBONES
from .tool_runs import ERF, LOCALITY, MAPS, ON_CPU, check_drawing, read_csv, write_config


def save_checkpoint(path: Path, name: str) -> Path:
    """Weights of a backbone whose outputs are not normalised to a constant mean."""
    backbone = MODELS.build(dict(type=f'bioattn_mm.{name}', **BACKBONES[name]))
    for parameter in backbone.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    torch.save({'state_dict': {f'backbone.{key}': value for key, value in backbone.state_dict().items()}}, path)
    return path


def test_fields_of_two_models(images: Path, tmp_path: Path, tool: InProcess) -> None:
    first, second = (write_config(tmp_path, name) for name in ('TransNeXt', 'GABViT'))
    checkpoint, out = save_checkpoint(tmp_path / 'transnext.pth', 'TransNeXt'), tmp_path / 'out'
    printed = tool(tmp_path, ERF, first, checkpoint, '--compare', second, '--size', 48, 80, '--out', out, *ON_CPU)

    rows, document = read_csv(out / 'erf.csv'), json.loads((out / 'erf.json').read_text())
    outputs = [('transnext', index) for index in range(4)] + [('gabvit', index) for index in (1, 2)]
    assert [(row['model'], int(row['output'])) for row in rows] == outputs
    assert document['weights'] == {'transnext': str(checkpoint), 'gabvit': 'random weights'}
    assert document['images'] == 3
    arrays = np.load(out / 'erf.npz')
    for row, field in zip(rows, document['fields'], strict=True):
        array = arrays[f'{row["model"]}, output {row["output"]}']
        assert array.shape == (int(row['height']), int(row['width'])) == (48, 80)
        areas = [float(row[f'area_{share}']) for share in (20, 50, 80, 99)]
        assert areas == sorted(areas) == [field[f'area_{share}'] for share in (20, 50, 80, 99)]
        assert 0 < areas[0] and areas[-1] <= 1
    # Further from the image a field is wider.
    assert float(rows[0]['area_50']) < float(rows[3]['area_50'])
    one = ('--compare', second, '--size', 48, 80, '--output', -1, '--max-images', 1, '--out', tmp_path / 'one')
    tool(tmp_path, ERF, first, checkpoint, *one, *ON_CPU)
    outputs = [(row['model'], int(row['output'])) for row in read_csv(tmp_path / 'one' / 'erf.csv')]
    assert outputs == [('transnext', 3), ('gabvit', 2)]
    check_drawing(tmp_path / 'one' / 'erf.png')
    check_drawing(out / 'erf.png')
    assert 'gabvit, random weights' in printed

    line = tool.refused(tmp_path, ERF, first, '--out', out, *ON_CPU)
    assert line == f'error: {out / "erf.csv"} is there already: name another folder for --out'


def test_untrained_model_is_said_to_have_no_field(images: Path, tmp_path: Path, tool: InProcess) -> None:
    config, out = write_config(tmp_path, 'TransNeXt', out_indices=(0, 1)), tmp_path / 'out'
    printed = tool(tmp_path, ERF, config, '--max-images', 1, '--size', 32, 48, '--out', out, *ON_CPU)
    assert 'no field of output 0, 1' in printed
    assert [row['sigma_x'] for row in json.loads((out / 'erf.json').read_text())['fields']] == [None, None]


@pytest.mark.parametrize('name', BACKBONES)
def test_maps_of_a_pixel(name: str, images: Path, tmp_path: Path, tool: InProcess) -> None:
    config, out = write_config(tmp_path, name), tmp_path / 'out'
    tool(tmp_path, MAPS, config, '--layer', 1, '--query', 39, 31, '--max-images', 1, '--out', out, *ON_CPU)
    document = json.loads((out / 'attention_maps.json').read_text())
    assert document['weights'] == 'random weights' and not (out / 'consistency.csv').exists()
    assert [Path(result['image']).name for result in document['images']] == ['image_0.png']
    stride = {'TransNeXt': 8, 'GABSwin': 4}.get(name, 16)
    for result in document['images']:
        check_drawing(out / result['drawing'])
        # The image is resized to 64 x 96 pixels.
        assert result['grid'] == [64 // stride, 96 // stride]
        assert result['token'] == [64 // stride - 1, 50 // stride]
        maps = {panel['name']: panel for panel in result['maps']}
        sums = {key: np.nansum(np.array(panel['values'], float), (1, 2)) for key, panel in maps.items()}
        if name == 'TransNeXt':
            np.testing.assert_allclose(sums['window'] + sums['pooled'], 1, rtol=1e-4)
            # One row of the window is outside.
            token = maps['window']
            assert [token[side] for side in ('top', 'bottom', 'left', 'right')] == [48, 64, 40, 64]
        elif name == 'VARS':
            assert list(maps) == ['step 0', 'step 1', 'attention', *(f'strength, step {step}' for step in range(3))]
            assert np.array(maps['strength, step 2']['values']).shape == (2, 4, 6)
        else:
            names = {'attention'} if name == 'GABSwin' else {'content', 'position', 'attention'}
            assert names <= set(maps)
            for key in names:
                np.testing.assert_allclose(sums[key], 1, rtol=1e-4)
        if name == 'ConViT':
            assert result['gates'] == pytest.approx([torch.sigmoid(torch.tensor(1.0)).item()] * 4)
    if name == 'GABSwin':  # windows of 4 x 4 tokens, shifted by 2, of which the mask leaves a part at the border
        panel = maps['attention']
        assert [panel[side] for side in ('top', 'bottom', 'left', 'right')] == [56, 64, 40, 56]


def test_maps_of_several_layers_and_models(images: Path, tmp_path: Path, tool: InProcess) -> None:
    first, second = (write_config(tmp_path, name) for name in ('TransNeXt', 'GABViT'))
    options = ('--images', images / 'image_1.png', '--size', 64, 96, *ON_CPU)
    tool(tmp_path, MAPS, second, '--layer', 0, -1, '--out', tmp_path / 'layers', *options)
    tool(tmp_path, MAPS, first, '--layer', 2, '--compare', second, '--out', tmp_path / 'models', *options)
    received = ('--part', 'received', '--corrupt', 'fog:1', '--compare', write_config(tmp_path, 'VARS'))
    tool(tmp_path, MAPS, first, '--layer', 1, *received, '--out', tmp_path / 'received', *options)
    results = json.loads((tmp_path / 'received' / 'attention_maps.json').read_text())['images']
    attention, vars_ = (next(m for m in result['maps'] if m['name'] == 'received') for result in results[::2])
    # The tokens get 1 in all from a softmax, and any strength from VARS.
    np.testing.assert_allclose(np.sum(attention['values'], (1, 2)), 1, rtol=1e-4)
    assert np.array(vars_['values']).shape == (2, 4, 6)
    for folder, expected in (
        ('layers', [('gabvit', 'blocks.0.attn'), ('gabvit', 'blocks.2.attn')]),
        ('models', [('transnext', 'stages.2.blocks.0.attn'), ('gabvit', 'blocks.2.attn')]),
    ):
        results = json.loads((tmp_path / folder / 'attention_maps.json').read_text())['images']
        assert [(result['model'], result['layer']) for result in results] == expected
        assert {Path(result['image']).name for result in results} == {'image_1.png'}
        check_drawing(tmp_path / folder / '000_image_1.png')


@pytest.mark.parametrize('name', BACKBONES)
def test_locality_of_every_system(name: str, images: Path, tmp_path: Path, tool: InProcess) -> None:
    config, out = write_config(tmp_path, name), tmp_path / 'out'
    options = ('--images', images, '--size', 48, 64, '--max-images', 2, '--out', out, *ON_CPU)
    printed = tool(tmp_path, LOCALITY, config, *options)
    rows, document = read_csv(out / 'locality.csv'), json.loads((out / 'locality.json').read_text())
    assert document['images'] == 2 and len(document['heads']) == len(rows)
    measures = dict(
        TransNeXt={'pooled_share'},
        GABSwin={'gaussian_amplitude', 'gaussian_sigma'},
        ConViT={'gate', 'nonlocality_content', 'nonlocality_position', 'impact_position'},
        PerViT={'region', 'impact_content', 'impact_position', 'omega_attention', 'share_central'},
        GABViT={'gaussian_amplitude', 'gaussian_sigma', 'impact_position'},
        VARS={'nonlocality_step_0', 'nonlocality_step_1', 'sparsity', 'active_codes'},
    )
    assert measures[name] | {'layer', 'name', 'head', 'height', 'width', 'nonlocality'} <= set(rows[0])
    heads = dict(TransNeXt=1 + 2 + 3 + 4, GABSwin=2 * (1 + 2 + 2 + 2), ConViT=4 * 4, PerViT=4, GABViT=6, VARS=4)
    assert len(rows) == heads[name]
    assert all(0 < float(row['nonlocality']) < np.hypot(int(row['height']), int(row['width'])) for row in rows)
    if name == 'ConViT':  # the last layer is one with a class token and without a gate
        assert [bool(row['gate']) for row in rows] == [True] * 12 + [False] * 4
    check_drawing(out / 'locality.png')
    assert 'means over heads' in printed


def test_local_file_of_the_config(images: Path, tmp_path: Path, tool: InProcess) -> None:
    """Weights come from the file that the config starts from, where it is a local one."""
    checkpoint = save_checkpoint(tmp_path / 'vit.pth', 'GABViT')
    init_cfg = dict(type='Pretrained', checkpoint=str(checkpoint))
    config = write_config(tmp_path, 'GABViT', init_cfg=init_cfg)
    tool(tmp_path, LOCALITY, config, '--max-images', 1, '--out', tmp_path / 'out', *ON_CPU)
    assert list(json.loads((tmp_path / 'out' / 'locality.json').read_text())['weights'].values()) == [str(checkpoint)]
    config = write_config(tmp_path, 'GABViT', init_cfg=dict(init_cfg, checkpoint='https://example.org/vit.pth'))
    other = ('--compare', write_config(tmp_path, 'PerViT'), '--compare', write_config(tmp_path, 'ConViT'))
    tool(tmp_path, LOCALITY, config, *other, '--max-images', 1, '--out', tmp_path / 'out_of_url', *ON_CPU)
    document = json.loads((tmp_path / 'out_of_url' / 'locality.json').read_text())
    assert document['weights'] == dict.fromkeys(('gabvit', 'pervit', 'convit'), 'random weights')
    assert {row['model'] for row in document['heads']} == {'gabvit', 'pervit', 'convit'}
    check_drawing(tmp_path / 'out_of_url' / 'locality.png')
