"""Running the tools as a user does, and reading what they wrote."""

import json
import subprocess
import sys
from pathlib import Path

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


def scalars(work_dir: Path) -> list[dict]:
    """What the newest training run logged: one line for each interval and each validation."""
    newest = max(work_dir.glob('*/vis_data/scalars.json'))
    return [json.loads(line) for line in newest.read_text().splitlines()]


def metrics_of_test(work_dir: Path) -> dict:
    """The metrics that tools/test.py wrote."""
    (file,) = work_dir.glob('*/*.json')
    return json.loads(file.read_text())
