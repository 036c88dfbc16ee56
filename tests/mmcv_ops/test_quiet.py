"""Nothing is printed that a user can do nothing about."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_mmdet_prints_nothing_when_it_is_imported() -> None:
    code = 'import bioattn_mm; import mmdet.datasets, mmseg.datasets'
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', code], capture_output=True, text=True, check=True)
    assert 'OneDL' not in done.stdout + done.stderr
