"""Files that tests leave behind in the checkout fail the run, which ends with their names."""

import subprocess
from pathlib import Path

import pytest

CACHES = ('__pycache__', '.pytest_cache', '.ruff_cache')
BEFORE = pytest.StashKey[set]()
LEFT = pytest.StashKey[list]()


def files_beside_gits(folder: Path) -> set[str]:
    """Files and folders that git does not track, ignored ones, too, without caches; none where there is no git."""
    command = ['git', 'status', '--porcelain', '--ignored', '-z']
    try:
        listed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return set()
    names = {line[3:] for line in listed.split('\0') if line.startswith(('??', '!!'))}
    return {name for name in names if Path(name).name not in CACHES}


def pytest_sessionstart(session: pytest.Session) -> None:
    # The process that the workers of pytest-xdist report to looks, once for all of them.
    if not hasattr(session.config, 'workerinput'):
        session.config.stash[BEFORE] = files_beside_gits(session.config.rootpath)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if BEFORE in session.config.stash:
        left = sorted(files_beside_gits(session.config.rootpath) - session.config.stash[BEFORE])
        session.config.stash[LEFT] = left
        if left and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name in config.stash.get(LEFT, []):
        terminalreporter.write_line(f'FAILED: left behind in the checkout: {name}', red=True)
