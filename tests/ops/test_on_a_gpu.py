"""benchmarks/on_a_gpu.sh: what it keeps when a step fails or is cut off, and a run to its end without a GPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / 'benchmarks/on_a_gpu.sh'
# In place of Python: prints a row; until it is allowed, fails in the tests, and in table 11 as `timeout` ends.
STAND_IN = """#!/bin/sh
echo "| row of $* |"
case "$*" in
    *pytest*) [ -e allowed ] || { echo 'no such file' >&2; exit 3; } ;;
    *table*11*) [ -e allowed ] || exit 124 ;;
esac
"""


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess:
    words = ['bash', str(SCRIPT), *map(str, arguments)]
    return subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True)


def test_what_fails_is_named_and_done_again(tmp_path: Path) -> None:
    allowed = tmp_path / 'allowed'
    python = tmp_path / 'python'
    python.write_text(STAND_IN.replace('allowed', str(allowed)))
    python.chmod(0o755)
    results = tmp_path / 'results'
    first = run(results, '--device', 'cpu', '--tiny', PYTHON=str(python))
    assert first.returncode == 1
    summary = (results / 'summary.md').read_text()
    states = dict(re.findall(r'^\| (\w+) \| (.*) \| \d+ \|$', summary, flags=re.MULTILINE))
    assert states.pop('tests') == 'failed with exit code 3: tests.log'
    assert states.pop('table_11').startswith('cut off after ')
    assert set(states.values()) == {'done'}
    assert '| row of -m pytest' in (results / 'tests.part.md').read_text()
    assert (results / 'tests.log').read_text() == 'no such file\n'
    assert '| row of benchmarks/against_swin.py --device cpu' in (results / 'eager_512.md').read_text()

    allowed.touch()
    done = {file: file.stat().st_mtime_ns for file in results.glob('*.md') if file.stem in states}
    second = run(results, '--device', 'cpu', '--tiny', PYTHON=str(python))
    assert second.returncode == 0
    assert re.findall(r'^\| (\w+) \|', second.stdout, flags=re.MULTILINE) == ['tests', 'table_11']
    assert done and {file: file.stat().st_mtime_ns for file in done} == done
    assert not list(results.glob('*.part.md'))


def test_wrong_arguments() -> None:
    for arguments, message in {
        '': 'name the folder of the results',
        'out --device tpu': '--device must be cpu or cuda, got tpu',
        'out --minutes 0': '--minutes must be a whole number from 1 on, got 0',
        'out --tinny': 'there is no option --tinny',
    }.items():
        process = run(*arguments.split())
        assert (process.returncode, process.stderr.splitlines()[-1]) == (2, f'on_a_gpu.sh: {message}')


@pytest.mark.every_compilation
def test_to_its_end_without_a_gpu(tmp_path: Path) -> None:
    process = run(tmp_path, '--device', 'cpu', '--tiny', '--minutes', '60', PYTHON=sys.executable)
    assert process.returncode == 0, process.stdout
    listed = run(tmp_path, '--device', 'cpu', '--tiny', '--list').stdout.splitlines()
    steps = [line.split()[0] for line in listed]
    assert {path.stem for path in tmp_path.glob('*.md')} == {*steps, 'summary'}
    for step in set(steps) - {'ops_check', 'tests'}:
        assert len(re.findall(r'^\| ', (tmp_path / f'{step}.md').read_text(), flags=re.MULTILINE)) > 2
