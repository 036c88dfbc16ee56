"""What tests leave behind in the checkout fails the run, also from a worker of pytest-xdist."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
from pathlib import Path

def test_one(): Path('work_dirs/run').mkdir(); Path('work_dirs/run/log').touch(); Path('new').touch()
def test_other(): assert Path('old').exists()
"""


@pytest.mark.parametrize('workers', ['0', '1'])
def test_its_name_is_said(workers: str, tmp_path: Path) -> None:
    def pytest_in_folder(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, '-m', 'pytest', '-q', '-n', workers, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    (tmp_path / 'conftest.py').write_text((ROOT / 'tests/left_behind.py').read_text())
    (tmp_path / 'test_it.py').write_text(TESTS)
    (tmp_path / 'work_dirs').mkdir()
    (tmp_path / '.gitignore').write_text('/work_dirs/*\n')
    (tmp_path / 'pytest.ini').touch()
    subprocess.run(['git', 'init', '--quiet'], cwd=tmp_path, check=True)
    (tmp_path / 'old').touch()

    run = pytest_in_folder()
    assert run.returncode == 1 and '2 passed' in run.stdout
    left = [line for line in run.stdout.splitlines() if 'left behind' in line]
    assert [line.split(': ')[-1] for line in left] == ['new', 'work_dirs/']
    run = pytest_in_folder('-k', 'other')
    assert run.returncode == 0 and 'left behind' not in run.stdout
