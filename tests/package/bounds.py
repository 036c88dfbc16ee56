"""One wheel with every torch and every Python, where there is no compiler.

In an environment of each, with the wheel and all its extras, run `python -m bioattn_mm.ops --check` and use_wheel.py.
The first Python of each torch also runs the operators' tests; with the newest torch, where nothing is pinned, it also
exports, and runs the tests of the page and of timm's interface. With the lowest torch, every package has the lowest
version that pyproject.toml names. A torch for the CPU may have no torchvision that fits: then there are the operators
alone. What was installed is removed after its use: 20 GB on disk at most. The exit code is 1 if one failed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TORCHES = ('lowest', '2.11.0', '2.13.0', '2.13.0+cpu', 'newest')
COLUMNS = ('Python', 'torch', 'NumPy', 'CUDA operators', '`ops --check`', "operators' tests", 'used')
# What the tests need beside the package, which comes from the wheel.
SUITE = ('tests', 'benchmarks', 'pyproject.toml', 'README.md', 'configs', 'tools', 'bioattn_mm/ops/csrc')
PYTEST = ('python', '-m', 'pytest', '-q', '-p', 'no:cacheprovider')
# The tests of each instruction set are `make test-capabilities`.
OPERATORS_TESTS = (*PYTEST, '--ignore', 'tests/ops/test_capabilities.py', 'tests/ops')
TIMM_TESTS = (*PYTEST, 'tests/systems/timm_models')
PAGE_TESTS = (*PYTEST, 'tests/page/test_requests.py')


class Failed(Exception):
    """A command of an environment failed, or said what it should not."""


class Absent(Exception):
    """There is no such torch for this Python."""


class Environment:
    """An environment with a torch and a Python, in a folder where the suite and the cache are."""

    def __init__(self, folder: Path, python: str, torch: str, lowest: list[str]) -> None:
        self.folder, self.python, self.torch, self.lowest = folder, python, torch, lowest
        self.path = folder / 'environment'
        self.variables = {
            **os.environ,
            # Where the files of +cpu are, the user may have told pip, whose settings uv does not read. For the other
            # torches uv would prefer them, too.
            'UV_FIND_LINKS': os.environ.get('PIP_FIND_LINKS', '').replace(' ', ',') if torch.endswith('+cpu') else '',
            'UV_CACHE_DIR': str(folder / 'cache'),
            'PATH': f'{self.path / "bin"}{os.pathsep}{os.environ["PATH"]}',
            'CC': 'no-compiler',
            'CXX': 'no-compiler',
        }
        self.variables.pop('PYTHONPATH', None)

    def run(self, *command: str) -> str:
        """What a command printed, in the folder of the suite."""
        streams = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding='utf-8', errors='replace')
        done = subprocess.run(command, cwd=self.folder / 'suite', env=self.variables, **streams)
        if done.returncode:
            raise Failed(f'{" ".join(command)}: exit code {done.returncode}\n{done.stdout[-6000:]}')
        return done.stdout

    def install(self, *arguments: str) -> None:
        self.run('uv', 'pip', 'install', '--quiet', '--python', str(self.path / 'bin' / 'python'), *arguments)

    def versions(self) -> dict[str, str]:
        printed = self.run('uv', 'pip', 'freeze', '--python', str(self.path / 'bin' / 'python'))
        return dict(line.split('==') for line in printed.splitlines() if '==' in line)

    def make(self, wheel: Path) -> None:
        """Install as a user does: torch first."""
        self.run('uv', 'venv', '--quiet', '--clear', '--python', self.python, str(self.path))
        try:
            self.install('torch' if self.torch == 'newest' else f'torch=={self.torch}')
        except Failed as error:
            if 'No solution found' in str(error):
                raise Absent(str(error).splitlines()[-1].strip()) from error
            raise
        if self.torch.endswith('+cpu'):
            self.install('numpy', 'packaging', 'rich')
            self.install('--no-deps', str(wheel))
            return
        pytest = re.search('^pytest==.*$', (ROOT / 'requirements' / 'test.txt').read_text(), re.MULTILINE)[0]
        try:
            self.install(f'{wheel}[all]', f'torch=={self.versions()["torch"]}', pytest, *self.lowest)
        except Failed as error:
            if self.lowest and self.variables['CC'] in str(error):
                raise Absent('a package of the lowest version has no wheel for this Python') from error
            raise
        # After opencv-python, which shares its folder and needs graphics libraries.
        opencv = f'opencv-python-headless=={self.versions()["opencv-python-headless"]}'
        self.install('--no-deps', '--reinstall', opencv)

    def row(self, wheel: Path, with_tests: bool) -> list[str]:
        """Make the environment, run everything in it, and return a row of the table."""
        self.make(wheel)
        versions = self.versions()
        report = self.run('python', '-m', 'bioattn_mm.ops', '--check', '--device', 'cpu')
        cuda = re.search('^compiled for CUDA: (.*)$', report, re.MULTILINE)[1]
        if 'do not fit' in cuda:
            raise Failed(cuda)
        tests = used = '-'
        if not self.torch.endswith('+cpu'):
            everything = with_tests and self.torch == 'newest'
            export = ['--export'] if everything else []
            used = self.run('python', 'tests/package/use_wheel.py', '../used', *export).splitlines()[-1]
            if everything:
                used += f', timm ({summary(self.run(*TIMM_TESTS))})'
                used += f', page ({summary(self.run(*PAGE_TESTS))})'
            if with_tests:
                tests = summary(self.run(*OPERATORS_TESTS))
        python = self.run('python', '--version').split()[1]
        checked = report.splitlines()[-1]
        return [python, versions['torch'], versions['numpy'], cuda.split(';')[0], checked, tests, used]


def summary(printed: str) -> str:
    """The line in which pytest counts; libraries may print more when they end."""
    return re.findall('^.*[0-9] passed.*$', printed, re.MULTILINE)[-1]


def lowest_versions() -> list[str]:
    """What `pip install 'bioattn_mm[...]'` asks for, with == for >=."""
    text = (ROOT / 'pyproject.toml').read_text()
    package = re.search(r'^dependencies = \[(.*?)^\]', text, re.MULTILINE | re.DOTALL)[1]
    extras = re.findall(r'^(?:detection|segmentation|classification) = (.*)$', text, re.MULTILINE)
    names = re.findall(r'"([a-z][^"]*)"', ' '.join([package, *extras]))
    return sorted({name.replace('>=', '==') for name in names})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('wheel', type=Path, help='such as dist/bioattn_mm-0.1.0-py3-none-manylinux_2_28_x86_64.whl')
    parser.add_argument('--pythons', nargs='+', required=True, metavar='PYTHON', help='the newest first')
    parser.add_argument('--torches', nargs='+', default=TORCHES, metavar='VERSION', help=' '.join(TORCHES))
    parser.add_argument('--folder', type=Path, default=ROOT / 'build/bounds', help='where everything is put')
    args = parser.parse_args()
    wheel, folder = args.wheel.resolve(), args.folder.resolve()
    shutil.rmtree(folder / 'suite', ignore_errors=True)
    for name in SUITE:
        (folder / 'suite' / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / 'suite' / name)
    rows, failed = [COLUMNS, ['---'] * len(COLUMNS)], []
    for torch in args.torches:
        lowest = lowest_versions() if torch == 'lowest' else []
        version = next((name.split('==')[1] for name in lowest if name.startswith('torch==')), torch)
        tested = False
        for python in args.pythons:
            if not tested:  # what another Python has left
                shutil.rmtree(folder / 'used', ignore_errors=True)
            environment = Environment(folder, python, version, lowest)
            print(f'torch {torch} with {python}', flush=True)
            try:
                rows.append(environment.row(wheel, not tested))
                tested = True
                print(' | '.join(rows[-1]), flush=True)
            except Absent as error:
                print(f'left out: {error}', flush=True)
            except Failed as error:
                print(f'FAILED: {error}', flush=True)
                failed.append(f'torch {torch} with {python}')
            finally:
                shutil.rmtree(environment.path, ignore_errors=True)
        if not tested:
            failed.append(f'no Python with torch {torch}')
        shutil.rmtree(folder / 'cache', ignore_errors=True)
    print(f'\n{wheel.name}\n')
    for row in rows:
        print(f'| {" | ".join(row)} |')
    if failed:
        sys.exit(f'FAILED: {", ".join(failed)}')


if __name__ == '__main__':
    main()
