"""mmpretrain beside a `transformers` in which functions that it imports are missing."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import bioattn_mm
from mmpretrain.models import build_backbone
from mmpretrain.registry import MODELS
print(MODELS.get('SwinTransformer').__name__, MODELS.get('BlipCaption').__name__)
"""


@pytest.mark.slow
def test_models_are_there_without_the_multimodal_ones(tmp_path: Path) -> None:
    """The stand-in for `transformers` 5 has no modules at all: where any of them is missing, mmpretrain fails."""
    (tmp_path / 'transformers').mkdir()
    (tmp_path / 'transformers/__init__.py').touch()
    (tmp_path / 'transformers-5.0.0.dist-info').mkdir()
    (tmp_path / 'transformers-5.0.0.dist-info/METADATA').write_text('Name: transformers\nVersion: 5.0.0\n')
    script = f'import sys; sys.path.insert(0, {str(tmp_path)!r}){SCRIPT}'
    process = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True)
    assert process.stdout.split() == ['SwinTransformer', 'ask_install'], process.stderr
