"""Changes one place of the package at a time, and names the changes that no test of it finds.

    python tests/mutants.py bioattn_mm/training/ema.py bioattn_mm/data/formats --number 40
    python tests/mutants.py bioattn_mm/ops/csrc/cpu --number 40

A change is another operator, comparison, number, condition, or order or number of a call's arguments. The tests are
`tests/FOLDER/test_FILE.py`, or those of the folder, and those of what imports the file, in a copy of the checkout.
`work_dirs/mutants.jsonl` has what was tried: a run goes on where another ended. A change of what tests hold is tried
anew once the file is removed.

A change of C++ is another operator or number. The library is compiled quickly: AVX2 stands for the instruction sets
whose kernels differ from its own in the length of vectors alone. A change that does not compile, or to the same
instructions, does not count.
"""

import argparse
import ast
import contextlib
import hashlib
import importlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / 'work_dirs/mutants.jsonl'
SWAPS = {ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult}
for names in ('Add Sub', 'Mult Div', 'Lt LtE', 'Gt GtE', 'Eq NotEq', 'In NotIn', 'Is IsNot', 'And Or'):
    first, second = (getattr(ast, name) for name in names.split())
    SWAPS.update({first: second, second: first})

CSRC = ROOT / 'bioattn_mm/ops/csrc'
CPP_SWAPS = {'<': '<=', '<=': '<', '>': '>=', '>=': '>', '==': '!=', '!=': '==', '&&': '||', '||': '&&'}
CPP_SWAPS |= {'+': '-', '-': '+', '*': '/', '/': '*', '+=': '-=', '-=': '+='}
# Binary operators have spaces on both sides, and brackets of templates have not.
CPP_CHANGED = re.compile(r'(?<= )(?:[-+*/<>]|[-+<>=!]=|&&|\|\|)(?= )|(?<![\w.])\d+(?:\.\d*(?:e-?\d+)?f?)?(?![\w.])')
CPP_WITHOUT_CHANGES = re.compile(r'//.*|"[^"]*"|^\s*(?:#|template|static_assert|check_value|BIOATTN_TARGET).*')
# The tests of all operators; what has no test of its own in that folder is one of them, or what they call.
OF_OPERATORS = [f'tests/ops/test_{name}.py' for name in ('formulas', 'every_operator', 'fuzz')]
STAND_INS = '#include "isa.h"\n' + ''.join(
    f'bioattn_mm::CpuKernels bioattn_mm::isa_{name}::make_kernels() {{ return isa_avx2::make_kernels(); }}\n'
    for name in ('default', 'avx512')
)


def nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Those that are computed: no annotations, and no text of messages."""
    yield node
    for child in ast.iter_child_nodes(node):
        if child not in (getattr(node, 'annotation', 0), getattr(node, 'returns', 0)):
            yield from () if isinstance(child, (ast.JoinedStr, ast.Raise)) else nodes(child)


def variants(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What can be changed in a node, each with the change."""

    def other(**fields: object) -> tuple[ast.expr, ast.expr]:
        return node, type(node)(**{**dict(ast.iter_fields(node)), **fields})

    if isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in SWAPS:
        yield other(op=SWAPS[type(node.op)]())
    elif isinstance(node, ast.Compare):
        yield other(ops=[SWAPS[type(node.ops[0])](), *node.ops[1:]])
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        yield other(value=not node.value if isinstance(node.value, bool) else node.value + 1)
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield node.test, ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Call):
        if len(node.args) > 1 and not any(isinstance(each, ast.Starred) for each in node.args[:2]):
            yield other(args=[node.args[1], node.args[0], *node.args[2:]])
        for each in node.keywords:
            yield other(keywords=[keyword for keyword in node.keywords if keyword is not each])


def mutants(file: Path) -> Iterator[tuple[str, bytes]]:
    """The changes of a file, and its text with each."""
    text = file.read_bytes()
    if file.is_relative_to(CSRC):
        yield from cpp_mutants(file)
        return
    starts = [0, *itertools.accumulate(map(len, text.splitlines(keepends=True)))]
    for node in nodes(ast.parse(text)):
        for old, new in variants(node):
            start, end = starts[old.lineno - 1] + old.col_offset, starts[old.end_lineno - 1] + old.end_col_offset
            name = f'{file.relative_to(ROOT)}:{old.lineno}: {ast.unparse(old)} -> {ast.unparse(new)}'
            yield name, text[:start] + b'(' + ast.unparse(new).encode() + b')' + text[end:]


def cpp_mutants(file: Path) -> Iterator[tuple[str, bytes]]:
    lines = file.read_text().splitlines(keepends=True)
    for number, line in enumerate(lines):
        code = CPP_WITHOUT_CHANGES.sub(lambda match: '_' * len(match[0]), line)
        for match in CPP_CHANGED.finditer(code):
            new = CPP_SWAPS.get(match[0], f'({match[0]} + 1)')
            changed = line[: match.start()] + new + line[match.end() :]
            name = f'{file.relative_to(ROOT)}:{number + 1}:{match.start() + 1}: {match[0]} -> {new}: {line.strip()}'
            yield name, ''.join([*lines[:number], changed, *lines[number + 1 :]]).encode()


class Operators:
    """The library of a copy of the checkout; `kept` has the objects of the sources as they are."""

    def __init__(self, place: Path) -> None:
        from distutils.core import run_setup

        import setuptools  # noqa: F401  has distutils

        extension = run_setup(str(ROOT / 'setup.py'), ['build_ext'], stop_after='init').ext_modules[0]
        self.csrc, self.library = place / CSRC.relative_to(ROOT), place / 'bioattn_mm/ops/_cpu.so'
        (self.csrc / 'cpu/avx512.cpp').write_text(STAND_INS)
        (self.csrc / 'cpu/default.cpp').write_text('')
        self.sources = {Path(source).stem: (place / source).relative_to(self.csrc) for source in extension.sources}
        included = ['-I.', *(f'-I{folder}' for folder in extension.include_dirs[1:])]
        defined = [f'-D{name}={value}' for name, value in extension.define_macros]
        self.compiler, self.folders = os.environ.get('CXX', 'c++'), [f'-L{each}' for each in extension.library_dirs]
        self.flags = [*extension.extra_compile_args['cxx'], *included, *defined, '-O1', '-fPIC']
        text = repr(self.flags).encode() + b''.join(path.read_bytes() for path in files_of(CSRC))
        kept = RECORDS.with_name('mutants_objects') / hashlib.sha256(text).hexdigest()[:8]
        kept.mkdir(parents=True, exist_ok=True)
        self.kept = {unit: kept / f'{unit}.o' for unit in self.sources}
        for unit in self.sources:
            if not self.kept[unit].exists():
                shutil.copy(self.compiled(unit), self.kept[unit])
        self.link({})

    def compiled(self, unit: str) -> Path | None:
        command = [self.compiler, *self.flags, '-c', self.sources[unit], '-o', path := self.csrc / f'{unit}.o']
        process = subprocess.run(command, cwd=self.csrc, stderr=subprocess.DEVNULL)
        return None if process.returncode else path

    def link(self, changed: dict[str, Path]) -> None:
        self.library.unlink(missing_ok=True)  # in use where it was loaded
        objects = (self.kept | changed).values()
        command = [self.compiler, '-shared', *objects, *self.folders, '-ltorch_cpu', '-o', self.library]
        subprocess.run(command, check=True)

    def pass_in(self, file: Path, tests: list[str], limit: float) -> bool | None:
        """As the function, with a changed file; None where that does not compile, or to nothing else."""
        passes, of_all = None, file.suffix == '.cpp' or file.parent == CSRC or file.stem == 'isa'
        for units in (['avx2', *['operators', 'isa'] * of_all], ['avx512_bf16', 'amx']):
            objects = {unit: self.compiled(unit) for unit in units}
            if None in objects.values():
                return None
            changed = {u: path for u, path in objects.items() if path.read_bytes() != self.kept[u].read_bytes()}
            if changed:
                self.link(changed)
                if not (passes := pass_in(self.csrc.parents[2], tests, limit)):
                    break
        return passes


def files_of(folder: Path) -> list[Path]:
    names = ('*.h', '*.cpp') if folder.resolve().is_relative_to(CSRC) else ('*.py',)
    return [path for path in sorted(folder.rglob('*')) if any(map(path.match, names))]


def tests_of(file: Path, with_folder: bool) -> list[str]:
    """The tests of a file and of what imports it; those of the nearest folder above, where it has none of its own."""
    if file.is_relative_to(CSRC):
        return OF_OPERATORS
    parents = (ROOT / 'tests' / file.relative_to(ROOT / 'bioattn_mm')).parents
    folder = next(each for each in parents if list(each.glob('test_*.py')))
    # Tests of what a folder refuses run with both, and those of `common` beside it, which are about all systems.
    folders = [each for each in dict.fromkeys((folder, folder.with_name('common'))) if each.is_dir()]
    own = folder / f'test_{file.stem}.py'
    tests = [own, *(each / 'test_wrong_arguments.py' for each in folders)] if own.exists() else []
    whole = folders * (with_folder or not tests)
    tests += [ROOT / path for path in OF_OPERATORS] * (folder == ROOT / 'tests/ops' and not tests)
    package, _, name = '.'.join(file.relative_to(ROOT).with_suffix('').parts).rpartition('.')
    imports = re.compile(rf'\b{package}(\.| import (.*\W)?){name}\b')
    for path in sorted([*(ROOT / 'tests').rglob('test_*.py'), *(ROOT / 'tools').rglob('*.py')]):
        if imports.search(path.read_text()):
            tests.append(path if path.match('test_*') else ROOT / f'tests/tools/test_{path.stem}.py')
    return [str(path.relative_to(ROOT)) for path in dict.fromkeys(tests + whole) if path.exists()]


def pass_in(place: Path, tests: list[str], limit: float = 3600) -> bool:
    """Whether all tests pass in the copy, in a process that has the libraries imported."""
    if not (process := os.fork()):
        os.setsid()
        signal.alarm(int(limit))
        for stream in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), stream)
        os.chdir(place)
        sys.path[0] = str(place)
        os.environ.update(PYTHONPATH=str(place), PYTHONDONTWRITEBYTECODE='1')
        sys.dont_write_bytecode = True
        import pytest

        codes = (pytest.main(['-qx', '-p', 'no:cacheprovider', '-p', 'no:randomly', each]) for each in tests)
        os._exit(any(code not in (0, 5) for code in codes))
    _, status = os.waitpid(process, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    return status == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('paths', nargs='+', type=Path, help='files or folders of bioattn_mm')
    parser.add_argument('--number', type=int, default=20, help='how many changes of all paths together are tried')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--folder', action='store_true', help="the folder's tests, too, where the file has its own")
    args = parser.parse_args()
    files = [f for path in args.paths for f in (files_of(path) if path.is_dir() else [path])]
    wanted = [(file.resolve(), *each) for file in files for each in mutants(file.resolve())]
    random.Random(args.seed).shuffle(wanted)
    RECORDS.parent.mkdir(exist_ok=True)
    RECORDS.touch()
    found = dict(map(json.loads, RECORDS.read_text().splitlines()))
    for name in ('torchvision', 'mmengine.runner', 'timm', 'pycocotools.mask'):  # what most tests import, once
        importlib.import_module(name)

    tried, survived, limits, operators = 0, 0, {}, None
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / 'checkout'
        listed = subprocess.run(['git', 'ls-files', '-z'], cwd=ROOT, capture_output=True, text=True, check=True)
        for path in (*map(ROOT.joinpath, listed.stdout.split('\0')[:-1]), *ROOT.glob('bioattn_mm/**/*.so')):
            if path.exists():
                (place / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, place / path.relative_to(ROOT), follow_symlinks=False)
        for file, name, text in wanted:
            tests = tests_of(file, args.folder)
            key = f'{name} {hashlib.sha256(text).hexdigest()[:8]} {tests}'
            if key not in found:
                is_cpp = file.is_relative_to(CSRC)
                operators = operators or (Operators(place) if is_cpp else None)
                if (names := str(sorted(tests))) not in limits:
                    start = time.monotonic()
                    if not pass_in(place, tests):
                        sys.exit(f'{" ".join(tests)} fail without a change')
                    limits[names] = 60 + 4 * (time.monotonic() - start)
                (changed := place / file.relative_to(ROOT)).write_bytes(text)
                arguments = tests, limits[names]
                passes = operators.pass_in(file, *arguments) if is_cpp else pass_in(place, *arguments)
                found[key] = None if passes is None else not passes
                changed.write_bytes(file.read_bytes())
                with RECORDS.open('a') as stream:
                    print(json.dumps([key, found[key]]), file=stream)
            if found[key] is not None:
                tried, survived = tried + 1, survived + (not found[key])
                print('found   ' if found[key] else 'SURVIVED', name, flush=True)
            if tried == args.number:
                break
    print(f'{survived} of {tried} changes survived, of {len(wanted)} that are possible')


if __name__ == '__main__':
    main()
