"""What the tools set before PyTorch is loaded: OpenMP's threads sleep, freed memory is kept."""

import ast
import os
import subprocess
import sys
from importlib import reload
from pathlib import Path

import pytest

from bioattn_mm.cli import threads

from ..conftest import ROOT

TOOLS = sorted((ROOT / 'tools').rglob('*.py'))


@pytest.mark.parametrize('tool', TOOLS, ids=lambda path: path.stem)
def test_it_is_the_first_import_that_may_load_pytorch(tool: Path) -> None:
    imports = [node for node in ast.parse(tool.read_text()).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = [node.names[0].name if isinstance(node, ast.Import) else node.module for node in imports]
    installed = [name for name in names if name.split('.')[0] not in sys.stdlib_module_names]
    assert installed[0] == 'bioattn_mm.cli.threads'


# Prints the page faults of filling 64 MiB, the fewest of some times.
FAULTS = """
import resource
import bioattn_mm.cli.threads, torch
faults = []
for _ in range(12):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(faults))
"""


@pytest.mark.skipif(
    sys.platform != 'linux', reason='reads what GNU OpenMP prints, and counts faults of the GNU library'
)
def test_openmp_and_the_c_library_read_it() -> None:
    unset = ('OMP_WAIT_POLICY', 'GOMP_SPINCOUNT', *threads.MALLOC_VARIABLES)
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    process = subprocess.run(
        [sys.executable, '-c', FAULTS],
        env={**environment, 'OMP_DISPLAY_ENV': 'VERBOSE'},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "GOMP_SPINCOUNT = '0'" in process.stderr
    assert int(process.stdout) < 1000  # of 16384 pages


def test_the_users_value_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('OMP_WAIT_POLICY', 'ACTIVE')
    reload(threads)
    assert os.environ['OMP_WAIT_POLICY'] == 'ACTIVE'
