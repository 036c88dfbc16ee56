"""The tree of CONTRIBUTING: a subpackage imports only from those above it, and no file imports itself by others.

What only Linux or Unix has is used where it is there, and else left out.
"""

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
FILES = [*MODULES.values(), *(ROOT / 'tools').rglob('*.py'), ROOT / 'setup.py']
OF_LINUX = re.compile(
    r'import (fcntl|resource|pwd|grp|termios)\b|\bos\.(fork|sched_|getuid|killpg|setsid)|'
    r"\bsignal\.(SIG(HUP|USR[12]|KILL|CHLD|ALRM)|sigwaitinfo|pthread_sigmask|alarm|setitimer)|'/proc"
)


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


@pytest.mark.parametrize('subpackage', SUBPACKAGES)
def test_a_subpackage_imports_only_from_those_above(subpackage: str) -> None:
    above = SUBPACKAGES[: SUBPACKAGES.index(subpackage) + 1]
    for name in MODULES:
        if name.split('.')[1:2] == [subpackage]:
            imported = {module.split('.')[1] for module in imported_modules(name) if '.' in module}
            assert imported & set(SUBPACKAGES) <= set(above), name


def test_every_subpackage_is_in_the_tree_and_there_is_no_circle() -> None:
    assert set(SUBPACKAGES) == {path.parent.name for path in PACKAGE.glob('*/__init__.py')}
    TopologicalSorter({name: set(imported_modules(name)) for name in MODULES}).prepare()  # raises a CycleError


def test_no_test_module_imports_another() -> None:
    """What several share is in a module of its own."""
    tests = {file.stem for file in (ROOT / 'tests').rglob('test_*.py')}
    for file in (ROOT / 'tests').rglob('*.py'):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = {*(node.module or '').split('.'), *(alias.name for alias in node.names)}
                assert not names & tests, file


def linux_alone(source: str) -> list[str]:
    """What of it would fail elsewhere: neither in a `try`, nor in a function that asks `hasattr` first."""
    lines, nodes = source.splitlines(), list(ast.walk(ast.parse(source)))
    guards = [child for node in nodes if isinstance(node, ast.Try) for child in node.body]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    guards += [node for node in functions if 'hasattr(' in ''.join(lines[node.lineno - 1 : node.end_lineno])]
    guarded = {number for guard in guards for number in range(guard.lineno, guard.end_lineno + 1)}
    found = [OF_LINUX.search(line) for number, line in enumerate(lines, 1) if number not in guarded]
    return [match[0] for match in found if match]


def test_nothing_needs_linux() -> None:
    found = {str(path.relative_to(ROOT)): linux_alone(path.read_text()) for path in FILES}
    # Started only where `start_worker` has found `sigwaitinfo`.
    assert found.pop('bioattn_mm/training/randomness.py') == ['signal.sigwaitinfo']
    assert not {path: names for path, names in found.items() if names}
