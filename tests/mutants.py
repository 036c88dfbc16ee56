"""Changes one place of the package at a time, and names the changes that no test of the folder finds.

    python tests/mutants.py bioattn_mm/training/ema.py bioattn_mm/data/formats --number 40

A change is another operator, comparison, number, condition, or order or number of a call's arguments. The tests are
`tests/FOLDER/test_FILE.py`, or those of the folder, and run in a copy of the checkout. `work_dirs/mutants.jsonl` has
what was tried: a run goes on where another ended. A change of what tests hold is tried anew once the file is removed.
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
    starts = [0, *itertools.accumulate(map(len, text.splitlines(keepends=True)))]
    for node in nodes(ast.parse(text)):
        for old, new in variants(node):
            start, end = starts[old.lineno - 1] + old.col_offset, starts[old.end_lineno - 1] + old.end_col_offset
            name = f'{file.relative_to(ROOT)}:{old.lineno}: {ast.unparse(old)} -> {ast.unparse(new)}'
            yield name, text[:start] + b'(' + ast.unparse(new).encode() + b')' + text[end:]


def tests_of(file: Path, with_folder: bool) -> list[str]:
    """The tests of a file; those of its folder, or of the next one above it that has tests, where it has none.

    With both go what a folder refuses, and those of `common` beside it, which hold all systems to the same rules.
    """
    folder = Path('tests') / file.relative_to(ROOT / 'bioattn_mm').parent
    while not list((ROOT / folder).glob('test_*.py')):
        folder = folder.parent
    folders = [each for each in dict.fromkeys((folder, folder.with_name('common'))) if (ROOT / each).is_dir()]
    own, refused = folder / f'test_{file.stem}.py', (each / 'test_wrong_arguments.py' for each in folders)
    of_file = [path for path in (own, *refused) if (ROOT / path).exists()] if (ROOT / own).exists() else []
    return [str(path) for path in of_file + folders * (with_folder or not of_file)]


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
    files = [f for path in args.paths for f in (sorted(path.rglob('*.py')) if path.is_dir() else [path])]
    wanted = [(file.resolve(), *each) for file in files for each in mutants(file.resolve())]
    random.Random(args.seed).shuffle(wanted)
    RECORDS.parent.mkdir(exist_ok=True)
    RECORDS.touch()
    found = dict(map(json.loads, RECORDS.read_text().splitlines()))
    for name in ('torchvision', 'mmengine.runner', 'timm', 'pycocotools.mask'):  # what most tests import, once
        importlib.import_module(name)

    survived, limits = 0, {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / 'checkout'
        listed = subprocess.run(['git', 'ls-files', '-z'], cwd=ROOT, capture_output=True, text=True, check=True)
        for path in (*map(ROOT.joinpath, listed.stdout.split('\0')[:-1]), *ROOT.glob('bioattn_mm/**/*.so')):
            if path.exists():
                (place / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, place / path.relative_to(ROOT), follow_symlinks=False)
        for file, name, text in wanted[: args.number]:
            tests = tests_of(file, args.folder)
            key = f'{name} {hashlib.sha256(text).hexdigest()[:8]} {tests}'
            if key not in found:
                if str(tests) not in limits:
                    start = time.monotonic()
                    if not pass_in(place, tests):
                        sys.exit(f'{" ".join(tests)} fail without a change')
                    limits[str(tests)] = 60 + 4 * (time.monotonic() - start)
                (changed := place / file.relative_to(ROOT)).write_bytes(text)
                found[key] = not pass_in(place, tests, limits[str(tests)])
                changed.write_bytes(file.read_bytes())
                with RECORDS.open('a') as stream:
                    print(json.dumps([key, found[key]]), file=stream)
            survived += not found[key]
            print('found   ' if found[key] else 'SURVIVED', name, flush=True)
    print(f'{survived} of {min(args.number, len(wanted))} changes survived, of {len(wanted)} that are possible')


if __name__ == '__main__':
    main()
