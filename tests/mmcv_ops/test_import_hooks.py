"""What is imported when, what is said about it, and libraries beside which mmpretrain and mmdet are imported."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mmengine.logging import print_log

ROOT = Path(__file__).parents[2]


def python(code: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
    process = subprocess.run([sys.executable, '-c', code], env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return process


def test_nothing_is_imported_before_it_is_needed() -> None:
    run = python("""
import sys
import bioattn_mm
print(sorted({'torch', 'torchvision', 'mmcv', 'mmengine', 'numpy'} & set(sys.modules)))
import bioattn_mm.data
print(sorted({'torch', 'mmcv', 'mmengine'} & set(sys.modules)))
from importlib.util import find_spec
print(find_spec('mmcv._ext').origin, 'torchvision' in sys.modules)
import mmcv._ext
print(mmcv._ext.nms.__module__, 'torchvision' in sys.modules)
""")
    if 'stand_ins' not in run.stdout:
        pytest.skip('mmcv has its compiled ops here')
    assert run.stdout.splitlines() == [
        '[]', '[]', 'bioattn_mm.mmcv_ops.stand_ins False', 'bioattn_mm.mmcv_ops.boxes True',
    ]  # fmt: skip


def test_models_imported_before_are_warned_of() -> None:
    printed = python('import mmdet.structures\nimport bioattn_mm\n').stderr
    (warning,) = (line for line in printed.splitlines() if 'RuntimeWarning' in line)
    assert warning.startswith('<string>:2: ') and 'without mmcv.ops: mmdet.structures; import' in warning


@pytest.mark.slow
def test_mmpretrain_has_its_other_models_without_the_multimodal_ones(tmp_path: Path) -> None:
    """The stand-in for `transformers` 5 has no modules at all: where any of them is missing, mmpretrain fails."""
    (tmp_path / 'transformers').mkdir()
    (tmp_path / 'transformers/__init__.py').touch()
    (tmp_path / 'transformers-5.0.0.dist-info').mkdir()
    (tmp_path / 'transformers-5.0.0.dist-info/METADATA').write_text('Name: transformers\nVersion: 5.0.0\n')
    run = python(f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import bioattn_mm, mmpretrain.models
from mmpretrain.registry import MODELS
print(MODELS.get('SwinTransformer').__name__, MODELS.get('BlipCaption').__name__)
""")
    assert run.stdout.split() == ['SwinTransformer', 'ask_install']


def test_debugging_messages_alone_are_hidden(capsys: pytest.CaptureFixture, caplog: pytest.LogCaptureFixture) -> None:
    """Where no logger is named, as by mmdet, which says that it could not import OneDL."""
    caplog.set_level(logging.DEBUG)
    print_log('hidden', level=logging.DEBUG)
    print_log('shown')
    print_log('of a logger', logging.getLogger('tested'), logging.DEBUG)
    assert capsys.readouterr().out == 'shown\n' and caplog.messages == ['of a logger']
