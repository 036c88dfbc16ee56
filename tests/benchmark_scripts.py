"""The scripts in benchmarks/, as tests call what is in them."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parents[1] / 'benchmarks'


def names_of(script: str) -> SimpleNamespace:
    """What a script defines and imports; it finds its neighbours as if it had been started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        return SimpleNamespace(**runpy.run_path(str(BENCHMARKS / script)))
