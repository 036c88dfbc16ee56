"""What the files of the project say of its packages."""

import re
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

from ..needs import module_needs

module_needs('tomllib')  # of Python 3.11

import tomllib  # noqa: E402

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())
PROJECT = PYPROJECT['project']
RUNTIME = tomllib.loads((ROOT / 'packaging/runtime/pyproject.toml').read_text())['project']


def pins(file: Path) -> Iterator[Requirement]:
    """The requirements of a file, each with one version."""
    for line in file.read_text().splitlines():
        requirement = Requirement(line)
        assert re.fullmatch(r'==[\w.]+', str(requirement.specifier)), f'{file.name}: {line}'
        yield requirement
