"""The notebooks, from top to bottom as a user runs them, with smaller models and fewer iterations."""

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

SMALL = 'tests/tools/upernet_small.py'


@pytest.fixture(autouse=True)
def bioattn(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command as pip writes it, for environments without: behind an installed one on the path."""
    script = tmp_path_factory.mktemp('bin') / 'bioattn'
    script.write_text(f'#!{sys.executable}\nfrom bioattn_mm.cli.main import main\n\nmain()\n')
    script.chmod(0o755)
    monkeypatch.setenv('PATH', f'{os.environ["PATH"]}{os.pathsep}{script.parent}')


def run(root: Path, folder: Path, name: str, **parameters: object) -> tuple[str, int]:
    """What the cells of a notebook print in a folder with other parameters, and the number of their images."""
    notebook = nbformat.read(root / 'notebooks' / name, as_version=4)
    (cell,) = (cell for cell in notebook.cells if 'parameters' in cell.metadata.get('tags', ()))
    for key, value in parameters.items():
        cell.source, number = re.subn(rf'(?m)^{key} = .*$', f'{key} = {value!r}', cell.source)
        assert number == 1, f'{name} has no parameter {key}'
    NotebookClient(notebook, timeout=300, resources=dict(metadata=dict(path=str(folder)))).execute()
    outputs = [output for cell in notebook.cells for output in cell.get('outputs', ())]
    text = ''.join(output.get('text', '') for output in outputs)
    return text, sum('image/png' in output.get('data', {}) for output in outputs)


@pytest.mark.slow
def test_predict_and_attention(root: Path, tmp_path: Path, workplace: Path) -> None:
    (tmp_path / 'runs').mkdir()
    (tmp_path / 'runs' / 'data').symlink_to(workplace / 'data')
    text, images = run(root, tmp_path, 'predict_and_attention.ipynb', CONFIG=str(root / SMALL), LAYER=2, ITERATIONS=2)
    assert 'iter_2.pth' in text and 'stages.2.blocks.0.attn' in text
    assert images == 4


@pytest.mark.slow
def test_train_on_own_data(root: Path, tmp_path: Path) -> None:
    options = '--cfg-options train_cfg.max_iters=2'
    text, images = run(root, tmp_path, 'train_on_own_data.ipynb', CONFIG=str(root / SMALL), OPTIONS=options)
    assert '60 images of' in text and 'iter_2.pth' in text
    assert images == 2


@pytest.mark.parametrize('name', ['predict_and_attention.ipynb', 'train_on_own_data.ipynb'])
def test_committed_without_outputs(root: Path, name: str) -> None:
    for cell in nbformat.read(root / 'notebooks' / name, as_version=4).cells:
        assert not cell.get('outputs') and cell.get('execution_count') is None
