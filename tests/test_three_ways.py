"""docs/three_ways.md: its code runs as it stands, with a stand-in for the hub."""

import re
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError
from mmengine.config import Config
from mmengine.registry import MODELS as OPENMMLAB
from timm.models import is_model

from bioattn_mm.systems.timm_models.timm_registry import MODELS
from tests.systems.timm_models.classifiers import released_file

FILE = 'transnext_tiny_224_1k.pth'


@pytest.fixture
def page(root: Path) -> str:
    return (root / 'docs/three_ways.md').read_text()


@pytest.fixture
def folder(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the configs and a file like the authors', which the hub has, too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'configs').symlink_to(root / 'configs')
    released_file(tmp_path / FILE, 'transnext_tiny')

    def download(repo_id: str, filename: str, revision: str | None = None, **kwargs: object) -> str:
        if (repo_id, filename) != ('DaiShiResearch/transnext-tiny-224-1k', FILE) or revision not in (None, 'main'):
            raise EntryNotFoundError(filename)
        return str(tmp_path / FILE)

    monkeypatch.setattr('huggingface_hub.hf_hub_download', download)
    monkeypatch.setattr('timm.models._hub.hf_hub_download', download)
    return tmp_path


def test_the_code_runs(page: str, folder: Path) -> None:
    (first, config, *blocks) = re.findall(r'```python\n(.*?)```', page, flags=re.DOTALL)
    names = {}
    for block in (first, *blocks):
        exec(block, names)
    assert names['logits'].shape == (1, 1000)
    assert names['features'].shape == (1, 576, 7, 7)
    assert names['pooled'].shape == (1, 576)
    assert names['model'](torch.randn(1, 3, 224, 224)).shape == (1, 10)
    norm = names['backbone'].stages[3].norm.weight
    torch.testing.assert_close(names['model'].backbone.stages[3].norm.weight, norm, rtol=0, atol=0)
    torch.testing.assert_close(names['again'].head.fc.weight, names['micro'].head.fc.weight)
    # 21 blocks, what comes before them, and the head.
    assert {group['lr_scale'] for group in names['optimizer'].param_groups} == {0.8**depth for depth in range(23)}

    (folder / 'upernet.py').write_text(config)
    backbone = OPENMMLAB.build(Config.fromfile(folder / 'upernet.py').model.backbone)
    backbone.init_weights()
    torch.testing.assert_close(backbone.stages[3].norm.weight, norm, rtol=0, atol=0)


def test_the_table_has_every_model(page: str) -> None:
    def expand(pattern: str) -> list[str]:
        match = re.search(r'\{(.*?)\}', pattern)
        names = match and [expand(pattern.replace(match[0], part, 1)) for part in match[1].split(',')]
        return sum(names, []) if match else [pattern]

    rows = [row.split('|')[1] for row in page.splitlines() if re.match(r'\| `\w+_', row)]
    assert {name for row in rows for pattern in re.findall(r'`(.*?)`', row) for name in expand(pattern)} == set(
        MODELS
    )
    assert all(map(is_model, MODELS))
