"""The notebooks, from top to bottom as a user runs them, with smaller models and fewer iterations."""

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'parameters', 'printed', 'images'),
    [
        ('predict_and_attention', dict(LAYER=2, ITERATIONS=2), ('iter_2.pth', 'stages.2.blocks.0.attn'), 4),
        ('train_on_own_data', dict(OPTIONS='--cfg-options train_cfg.max_iters=2'), ('60 images of', 'iter_2.pth'), 2),
    ],
)
def test_runs_from_top_to_bottom(
    name: str, parameters: dict, printed: tuple, images: int, root: Path, tmp_path: Path, workplace: Path, monkeypatch
) -> None:
    # The command as pip writes it, for environments without: behind an installed one on the path.
    script = tmp_path / 'bin/bioattn'
    script.parent.mkdir()
    script.write_text(f'#!{sys.executable}\nfrom bioattn_mm.cli.main import main\n\nmain()\n')
    script.chmod(0o755)
    monkeypatch.setenv('PATH', f'{os.environ["PATH"]}{os.pathsep}{script.parent}')
    if name == 'predict_and_attention':
        (tmp_path / 'runs').mkdir()
        (tmp_path / 'runs' / 'data').symlink_to(workplace / 'data')

    notebook = nbformat.read(root / f'notebooks/{name}.ipynb', as_version=4)
    (cell,) = (cell for cell in notebook.cells if 'parameters' in cell.metadata.get('tags', ()))
    for key, value in dict(parameters, CONFIG=str(root / 'tests/tools/upernet_small.py')).items():
        cell.source, number = re.subn(rf'(?m)^{key} = .*$', f'{key} = {value!r}', cell.source)
        assert number == 1, f'{name} has no parameter {key}'
    NotebookClient(notebook, timeout=300, resources=dict(metadata=dict(path=str(tmp_path)))).execute()
    outputs = [output for cell in notebook.cells for output in cell.get('outputs', ())]
    text = ''.join(output.get('text', '') for output in outputs)
    assert all(words in text for words in printed), text
    assert sum('image/png' in output.get('data', {}) for output in outputs) == images


@pytest.mark.parametrize('name', ['predict_and_attention.ipynb', 'train_on_own_data.ipynb'])
def test_committed_without_outputs(root: Path, name: str) -> None:
    for cell in nbformat.read(root / 'notebooks' / name, as_version=4).cells:
        assert not cell.get('outputs') and cell.get('execution_count') is None
