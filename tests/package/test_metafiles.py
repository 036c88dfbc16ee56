"""The metafiles against the format that mim reads, and against the configs."""

import re
from pathlib import Path

import pytest
import yaml
from mmengine.config import Config

modelindex = pytest.importorskip('modelindex')

ROOT = Path(__file__).parents[2]
INDEX = yaml.safe_load((ROOT / 'model-index.yml').read_text())
ENTRIES = {
    model['Config']: model
    for path in INDEX['Import']
    for model in yaml.safe_load((ROOT / path).read_text())['Models']
}


def test_the_index_imports_every_metafile_and_is_valid() -> None:
    assert INDEX['Import'] == sorted(str(path.relative_to(ROOT)) for path in ROOT.glob('configs/*/metafile.yml'))
    index = modelindex.load(str(ROOT / 'model-index.yml'))
    errors = index.check(silent=True)
    assert not errors, errors
    assert sorted(model.config for model in index.models) == sorted(ENTRIES)


def test_names_are_unique_and_those_of_the_configs() -> None:
    for path, model in ENTRIES.items():
        assert (ROOT / path).is_file()
        assert model['Name'] == f'{Path(path).parent.name}_{Path(path).stem}'


def test_pretrained_weights_are_those_of_the_configs() -> None:
    for path, model in ENTRIES.items():
        init_cfg = Config.fromfile(ROOT / path).model.backbone.get('init_cfg') or {}
        checkpoint = init_cfg.get('checkpoint') or ''
        expected = checkpoint if checkpoint.startswith('https://') else None
        assert model['Metadata'].get('Pretrained Weights') == expected, path


def test_the_thirteen_checkpoints_of_transnext() -> None:
    with_weights = {path: model for path, model in ENTRIES.items() if 'Weights' in model}
    assert len({model['Weights'] for model in with_weights.values()}) == 13
    for path, model in with_weights.items():
        # Of the model, size and dataset that the config is of.
        method, size, dataset = re.fullmatch(
            r'configs/transnext/(\w+?)_(tiny|small|base)_(coco|ade20k)(?:_ms)?.py', path
        ).groups()
        folder = f'{method.replace("mask_rcnn", "maskrcnn").replace("_", "-")}-transnext-{size}-{dataset[:4]}'
        folder = folder.replace('-ade2', '-ade')
        for url in (model['Weights'], model['Training Log']):
            assert url.startswith(f'https://huggingface.co/DaiShiResearch/{folder}/')
            assert f'/{method}_transnext_{size}_' in url
