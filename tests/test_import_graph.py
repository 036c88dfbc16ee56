"""The tree of CONTRIBUTING: a subpackage imports only from those above it, and no file imports itself by others."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / 'bioattn_mm'
TREE = re.search(r'^bioattn_mm/\n((?:  .*\n)*)', (ROOT / 'CONTRIBUTING.md').read_text(), flags=re.MULTILINE)[1]
SUBPACKAGES = re.findall(r'^  (\w+)/ ', TREE, flags=re.MULTILINE)
MODULES = {
    '.'.join(file.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__'): file
    for file in PACKAGE.rglob('*.py')
}


def imported_modules(name: str) -> Iterator[str]:
    """The modules of the package that a module imports, also within functions."""
    package = name.split('.') if MODULES[name].stem == '__init__' else name.split('.')[:-1]
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = '.'.join([*base, *([node.module] if node.module else [])])
            names = [f'{module}.{alias.name}' for alias in node.names]
            yield from (each for each in names if each in MODULES)
            if module in MODULES and not all(each in MODULES for each in names):
                yield module


def test_the_tree_names_every_subpackage() -> None:
    assert set(SUBPACKAGES) == {path.parent.name for path in PACKAGE.glob('*/__init__.py')}


@pytest.mark.parametrize('subpackage', SUBPACKAGES)
def test_a_subpackage_imports_only_from_those_above(subpackage: str) -> None:
    above = SUBPACKAGES[: SUBPACKAGES.index(subpackage) + 1]
    for name in MODULES:
        if name.split('.')[1:2] == [subpackage]:
            imported = {module.split('.')[1] for module in imported_modules(name) if '.' in module}
            assert imported & set(SUBPACKAGES) <= set(above), name


def test_there_is_no_circle() -> None:
    TopologicalSorter({name: set(imported_modules(name)) for name in MODULES}).prepare()  # raises a CycleError


def test_no_test_module_imports_another() -> None:
    """What several share is in a module of its own."""
    tests = {file.stem for file in (ROOT / 'tests').rglob('test_*.py')}
    for file in (ROOT / 'tests').rglob('*.py'):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = {*(node.module or '').split('.'), *(alias.name for alias in node.names)}
                assert not names & tests, file
