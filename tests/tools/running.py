"""Running the tools as a user does, and reading what they wrote."""

import json
import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(workplace: Path, tool: str, *args: str) -> subprocess.CompletedProcess:
    """Run a tool as a user does."""
    return subprocess.run(
        [sys.executable, ROOT / 'tools' / tool, *args],
        cwd=workplace,
        capture_output=True,
        text=True,
        check=False,
    )


def run_script(folder: Path, script: str, *args: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a script as a user does who has the environment active."""
    with socket.socket() as free:
        free.bind(('', 0))
        port = free.getsockname()[1]
    return subprocess.run(
        [ROOT / 'tools' / script, *args],
        cwd=folder,
        env={**os.environ, 'PYTHON': sys.executable, 'PORT': str(port), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, workplace: Path, *args: str) -> str:
    """Run a tool in this process; return its error line, after checking the exit code 2."""
    monkeypatch.chdir(workplace)
    monkeypatch.setattr(sys, 'argv', [str(ROOT / 'tools' / args[0]), *args[1:]])
    before = sorted(workplace.rglob('*'))
    with pytest.raises(SystemExit) as exit_:
        runpy.run_path(sys.argv[0], run_name='__main__')
    assert exit_.value.code == 2
    assert sorted(workplace.rglob('*')) == before  # nothing written
    return capsys.readouterr().err.splitlines()[-1]


def scalars(work_dir: Path) -> list[dict]:
    """What the newest training run logged: one line for each interval and each validation."""
    newest = max(work_dir.glob('*/vis_data/scalars.json'))
    return [json.loads(line) for line in newest.read_text().splitlines()]


def metrics_of_test(work_dir: Path) -> dict:
    """The metrics that tools/test.py wrote."""
    (file,) = work_dir.glob('*/*.json')
    return json.loads(file.read_text())
