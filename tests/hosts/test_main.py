"""`python -m bioattn_mm SCRIPT`."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bioattn_mm.__main__ import main

ARGUMENTS = """
import json, os, sys
is_imported = 'bioattn_mm' in sys.modules
line = [__name__, __doc__, __file__, sys.argv[1:], sys.path[0], os.environ.get('RANK'), is_imported]
sys.stdout.write(json.dumps(line) + '\\n')  # at once, as other processes print, too
"""


@pytest.fixture
def script(place: Path) -> str:
    (place / 'arguments.py').write_text(ARGUMENTS)
    return 'arguments.py'


def test_script_runs_as_it_does_alone(script: str, python: Callable) -> None:
    args = (script, '--help', '-m', 'x')
    through, alone = (json.loads(python(*before, *args).stdout) for before in (('-m', 'bioattn_mm'), ()))
    assert through == [*alone[:-1], True]
    assert alone[-1] is False


@pytest.mark.slow
def test_ranks_of_torchrun(script: str, python: Callable) -> None:
    launch = ('-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', '2', '-m', 'bioattn_mm')
    process = python(*launch, script, '--launcher', 'pytorch')
    lines = [json.loads(line) for line in process.stdout.splitlines()]
    assert sorted((line[3], line[5]) for line in lines) == [(['--launcher', 'pytorch'], rank) for rank in '01']


@pytest.mark.parametrize('args', [('none.py',), ('mmdet/.mim/tools',), ()])
def test_script_missing(
    args: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'argv', ['bioattn_mm', *args])
    with pytest.raises(SystemExit) as end:
        main()
    message = f'script not found: {args[0]}; searched in {tmp_path} ' if args else 'the following arguments are req'
    last = capsys.readouterr().err.splitlines()[-1]
    assert end.value.code == 2 and last.startswith(f'python -m bioattn_mm: error: {message}')
