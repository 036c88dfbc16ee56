"""What is imported when, what is said about it, and libraries beside which mmpretrain and mmdet are imported."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bioattn_mm.mmcv_ops.patches import hide_debugging

ROOT = Path(__file__).parents[2]


def python(code: str) -> subprocess.CompletedProcess:
    """Run code in a fresh interpreter."""
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
    process = subprocess.run([sys.executable, '-c', code], env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return process


def test_nothing_is_imported_before_it_is_needed() -> None:
    run = python("""
import sys
import bioattn_mm
print(sorted({'torch', 'torchvision', 'mmcv', 'mmengine', 'numpy'} & set(sys.modules)))
from importlib.util import find_spec
print(find_spec('mmcv._ext').origin, 'torchvision' in sys.modules)
import mmcv._ext
print(mmcv._ext.nms.__module__, 'torchvision' in sys.modules)
""")
    if 'stand_ins' not in run.stdout:
        pytest.skip('mmcv has its compiled ops here')
    assert run.stdout.splitlines() == [
        '[]', 'bioattn_mm.mmcv_ops.stand_ins False', 'bioattn_mm.mmcv_ops.boxes True',
    ]  # fmt: skip


def test_models_imported_before_are_warned_of() -> None:
    printed = python('import mmdet.structures\nimport bioattn_mm\n').stderr
    (warning,) = (line for line in printed.splitlines() if 'RuntimeWarning' in line)
    assert warning.startswith('<string>:2: ') and 'without mmcv.ops: mmdet.structures; import' in warning


@pytest.mark.slow
def test_mmdet_prints_nothing_that_a_user_can_do_nothing_about() -> None:
    run = python('import bioattn_mm; import mmdet.datasets, mmseg.datasets')
    assert 'OneDL' not in run.stdout + run.stderr


@pytest.mark.slow
def test_mmpretrain_has_its_other_models_without_the_multimodal_ones(tmp_path: Path) -> None:
    """The stand-in for `transformers` 5 has no modules at all: where any of them is missing, mmpretrain fails."""
    for name, text in {
        'transformers/__init__.py': '',
        'transformers-5.0.0.dist-info/METADATA': 'Name: transformers\nVersion: 5.0.0\n',
    }.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    run = python(f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import bioattn_mm, mmpretrain.models
from mmpretrain.registry import MODELS
print(MODELS.get('SwinTransformer').__name__, MODELS.get('BlipCaption').__name__)
""")
    assert run.stdout.split() == ['SwinTransformer', 'ask_install']


def test_messages_of_debugging_are_hidden_and_no_others() -> None:
    printed = []
    module = SimpleNamespace(print_log=lambda *arguments: printed.append(arguments))
    hide_debugging(module)
    module.print_log('hidden', level=logging.DEBUG)
    module.print_log('of a logger', 'current', logging.DEBUG)
    module.print_log('shown')
    assert printed == [('of a logger', 'current', logging.DEBUG), ('shown', None, logging.INFO)]
