"""The metafiles against the format that mim reads, and against the configs."""

import re
from pathlib import Path

import yaml

from ..needs import module_needs

pytestmark = module_needs('modelindex')

import modelindex  # noqa: E402

ROOT = Path(__file__).parents[2]
INDEX = yaml.safe_load((ROOT / 'model-index.yml').read_text())
METAFILES = [yaml.safe_load((ROOT / path).read_text()) for path in INDEX['Import']]
ENTRIES = {model['Config']: model for metafile in METAFILES for model in metafile['Models']}


def url_of_weights(config: Path) -> str | None:
    """Where a config, or one that it inherits from, takes its weights from: read as text, for speed."""
    text = config.read_text()
    if 'checkpoint=' in text:
        return next(iter(re.findall(r"checkpoint='(https://[^']+)'", text)), None)
    bases = re.search(r"^_base_ = ('[^']+'|\[[^]]+\])", text, flags=re.MULTILINE)
    # The backbone's file comes after a config whose backbone it replaces.
    for base in reversed(re.findall(r"'(\.[^']+)'", bases[1]) if bases else []):
        if url := url_of_weights(config.parent / base):
            return url
    return None


def test_the_index_imports_every_metafile_and_is_valid() -> None:
    assert INDEX['Import'] == sorted(str(path.relative_to(ROOT)) for path in ROOT.glob('configs/*/metafile.yml'))
    index = modelindex.load(str(ROOT / 'model-index.yml'))
    # Paths of READMEs are given from the root, as in mmdet; the checker looks for them beside the metafile.
    assert not [error for error in index.check(silent=True) if 'Path to README file' not in error]
    assert all((ROOT / metafile['Collections'][0]['README']).is_file() for metafile in METAFILES)
    assert sorted(model.config for model in index.models) == sorted(ENTRIES)


def test_names_are_unique_and_those_of_the_configs() -> None:
    for path, model in ENTRIES.items():
        assert (ROOT / path).is_file()
        assert model['Name'] == f'{Path(path).parts[1]}_{Path(path).stem}'


def test_pretrained_weights_are_those_of_the_configs() -> None:
    for path, model in ENTRIES.items():
        assert model['Metadata'].get('Pretrained Weights') == url_of_weights(ROOT / path), path


def test_the_thirteen_checkpoints_of_transnext() -> None:
    with_weights = {path: model for path, model in ENTRIES.items() if 'Weights' in model}
    assert len({model['Weights'] for model in with_weights.values()}) == 13
    for path, model in with_weights.items():
        method, size, data = re.search(r'/(\w+?)_(tiny|small|base)_(coco|ade)(20k)?(_ms)?.py', path).groups()[:3]
        folder = f'{method.replace("mask_rcnn", "maskrcnn").replace("_", "-")}-transnext-{size}-{data}'
        for url in (model['Weights'], model['Training Log']):
            assert url.startswith(f'https://huggingface.co/DaiShiResearch/{folder}/')
            assert f'/{method}_transnext_{size}_' in url
