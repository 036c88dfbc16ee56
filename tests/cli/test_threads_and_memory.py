"""What the tools set before PyTorch is loaded: OpenMP's threads soon sleep, freed memory is kept."""

import ast
import os
import re
import subprocess
import sys
from importlib import reload
from pathlib import Path

import pytest

from bioattn_mm.cli import threads_and_memory

from ..conftest import ROOT
from ..needs import needs

TOOLS = sorted((ROOT / 'tools').rglob('*.py'))


@pytest.mark.parametrize('tool', TOOLS, ids=lambda path: path.stem)
def test_it_is_the_first_import_that_may_load_pytorch(tool: Path) -> None:
    imports = [node for node in ast.parse(tool.read_text()).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = [node.names[0].name if isinstance(node, ast.Import) else node.module for node in imports]
    installed = [name for name in names if name.split('.')[0] not in sys.stdlib_module_names]
    assert installed[0] == 'bioattn_mm.cli.threads_and_memory'


# 64 MiB are in use, and free again.
BLOCK = """
import ctypes
import bioattn_mm.cli.threads_and_memory, torch
torch.ones(2**24)
ctypes.CDLL(None).malloc_stats()
"""
STATISTICS = re.compile(r'(?s)Total.*system bytes += +(\d+)\s+in use bytes += +(\d+).*max mmap bytes += +(\d+)')


@needs('mallinfo2')
def test_openmp_and_the_c_library_read_it() -> None:
    unset = ('OMP_WAIT_POLICY', 'GOMP_SPINCOUNT', *threads_and_memory.MALLOC_VARIABLES)
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment['OMP_DISPLAY_ENV'] = 'VERBOSE'
    command = [sys.executable, '-c', BLOCK]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "GOMP_SPINCOUNT = '1000'" in process.stderr
    total, in_use, mapped = map(int, STATISTICS.search(process.stderr).groups())
    assert mapped < 2**26 and total - in_use >= 0.9 * 2**26


def test_the_users_value_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('OMP_WAIT_POLICY', 'ACTIVE')
    monkeypatch.delenv('GOMP_SPINCOUNT', raising=False)
    reload(threads_and_memory)
    assert os.environ['OMP_WAIT_POLICY'] == 'ACTIVE' and 'GOMP_SPINCOUNT' not in os.environ
