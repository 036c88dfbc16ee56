"""The configs of the papers' ablation tables: each is a config of the system with another part in its backbone."""

import re
from os.path import normpath
from pathlib import Path

import pytest

from bioattn_mm.training.installed import find_config

from .reading import ABLATIONS, CONFIGS, ROOT, parse, shared_model, stated

NAMES = {f'{path.parts[1]}/{path.stem}': path for path in ABLATIONS}


@pytest.mark.parametrize('name', NAMES)
def test_varies_a_backbone_and_nothing_else(name: str) -> None:
    path = NAMES[name]
    lines = (ROOT / path).read_text().splitlines()
    (written,) = re.findall(r'^_base_ = (.*)$', '\n'.join(lines), flags=re.MULTILINE)
    base, *backbones = re.findall("'(.*?)'", written)
    assert all(name.startswith('../../_base_/backbones/') for name in backbones)
    base = Path(normpath(path.parent / base))
    config, inherited = parse(path).to_dict(), parse(base).to_dict()
    varied, own = config['model'].pop('backbone'), inherited['model'].pop('backbone', None)
    # The same backbone has other data: the first classes of ImageNet, of ConViT's figure 8.
    has_other_data = config['train_dataloader'] != inherited['train_dataloader']
    assert varied != own or has_other_data
    # Another host, as DeiT of PerViT's table 2, has a recipe of its own, and a head of its width.
    if base.parent.name != 'recipes' and not has_other_data:
        assert base in CONFIGS or base in ABLATIONS
        for settings in (config, inherited):
            settings['model'].get('head', {}).pop('in_channels', None)
        assert config == inherited
    # Which row of which table it is, and where its weights come from.
    comment = ' '.join(line.removeprefix('# ') for line in lines if line.startswith('# '))
    assert re.search(r'\((TransNeXt|ConViT|PerViT|GAB|VARS), (table|fig\.|eq\.|section) \d+', comment)
    assert ('# Weights: random.' in lines) == (varied.get('init_cfg') is None)


@pytest.mark.parametrize('name', NAMES)
def test_builds_as_many_parameters_as_the_metafile_states(name: str) -> None:
    parameters = sum(parameter.numel() for parameter in shared_model(parse(NAMES[name])).parameters()) / 1e6
    assert f'{parameters:.1f}' == str(stated(NAMES[name])['Parameters (M)'])


def test_is_found_by_name() -> None:
    for name, path in NAMES.items():
        system, stem = name.split('/')
        for wanted in (f'{system}/ablations/{stem}', f'configs/{system}/ablations/{stem}.py', stem):
            assert Path(find_config(wanted)).samefile(ROOT / path)
