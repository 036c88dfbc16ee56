"""`python -m bioattn_mm SCRIPT`."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bioattn_mm.__main__ import main

ARGUMENTS = """
import json, sys
is_imported = 'bioattn_mm' in sys.modules
line = [__name__, __doc__, __file__, sys.argv[1:], sys.path[0], is_imported]
print(json.dumps(line))
"""


def test_script_runs_as_it_does_alone(place: Path, python: Callable) -> None:
    (place / 'arguments.py').write_text(ARGUMENTS)
    args = ('arguments.py', '--help', '-m', 'x')
    through, alone = (json.loads(python(*before, *args).stdout) for before in (('-m', 'bioattn_mm'), ()))
    assert through == [*alone[:-1], True]
    assert alone[-1] is False


@pytest.mark.parametrize('args', [('none.py',), ('mmdet/.mim/tools',), ()])
def test_script_missing(args: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'argv', ['bioattn_mm', *args])
    with pytest.raises(SystemExit) as end:
        main()
    message = f'script not found: {args[0]}; searched in {tmp_path} ' if args else 'the following arguments are req'
    last = capsys.readouterr().err.splitlines()[-1]
    assert end.value.code == 2 and last.startswith(f'python -m bioattn_mm: error: {message}')
