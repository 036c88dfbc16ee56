"""Modules under their old names."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from bioattn_mm.renamed import RENAMED

SCRIPT = """
import warnings
import bioattn_mm.runtime
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter('always')
    import bioattn_mm.cli.threads
assert [str(each.message) for each in found if 'renamed' not in each.filename] == [
    'bioattn_mm.cli.threads is bioattn_mm.process_settings now: import that'
], found
import bioattn_mm.process_settings as new
assert bioattn_mm.cli.threads is new and new.__spec__.name == new.__name__ == 'bioattn_mm.process_settings'
"""


@pytest.mark.parametrize('old', RENAMED)
def test_the_new_module_is_there(old: str) -> None:
    assert find_spec(RENAMED[old])


def test_an_old_name_warns() -> None:
    subprocess.run([sys.executable, '-c', SCRIPT], check=True)
