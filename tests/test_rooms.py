"""The layout of the README: a room of the package imports only from the rooms above it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / 'bioattn_mm'
ROOMS = re.findall(r'^bioattn_mm/(\w+) ', (ROOT / 'README.md').read_text(), flags=re.MULTILINE)


def imported_rooms(file: Path) -> Iterator[str]:
    """The rooms of the package that a file imports from, relatively or by name."""
    package = ['bioattn_mm', *file.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            module = node.module.split('.') if node.module else []
            path = package[: len(package) - node.level + 1] + module if node.level else module
            paths = [path] if len(path) > 1 else [[*path, alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            paths = [alias.name.split('.') for alias in node.names]
        else:
            continue
        yield from (path[1] for path in paths if path[0] == 'bioattn_mm' and len(path) > 1 and path[1] in ROOMS)


def test_the_readme_names_every_room() -> None:
    assert set(ROOMS) == {path.parent.name for path in PACKAGE.glob('*/__init__.py')}


@pytest.mark.parametrize('room', ROOMS)
def test_a_room_imports_only_from_rooms_above(room: str) -> None:
    above = ROOMS[: ROOMS.index(room) + 1]
    for file in (PACKAGE / room).rglob('*.py'):
        assert set(imported_rooms(file)) <= set(above), file
