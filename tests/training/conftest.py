"""The folder in which small trainings run."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bioattn_mm.training.checkpoints import SIGNALS


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, in a process that ignores no signal: a shell lets what it starts do so."""
    monkeypatch.chdir(tmp_path)
    before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    yield tmp_path
    for number, handler in before.items():
        signal.signal(number, handler)
