"""The Dockerfiles, read without Docker: their files, versions and commands are those of the repository."""

import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from ..docs.blocks import Block
from .project import PROJECT, ROOT, pins


@pytest.fixture(params=sorted((ROOT / 'docker').glob('Dockerfile.*')), ids=lambda path: path.name)
def arguments(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    """The arguments in a Dockerfile by their instruction, without comments and line breaks."""
    lines = [line for line in request.param.read_text().splitlines() if not line.startswith('#')]
    arguments = defaultdict(list)
    for line in filter(None, '\n'.join(lines).replace('\\\n', ' ').splitlines()):
        instruction, argument = line.split(maxsplit=1)
        arguments[instruction].append(argument)
    return arguments


def test_the_base_image_is_that_of_the_pinned_torch(arguments: dict[str, list[str]]) -> None:
    (image,) = arguments['FROM']
    name, version = re.fullmatch(r'(\S+):(\d+\.\d+\.\d+)-\S+', image).groups()
    if name == 'python':
        assert version in SpecifierSet(PROJECT['requires-python'])
    else:
        # The toolkit compiles for the torch that is installed, so both are of one CUDA release.
        (pin,) = [pin for pin in pins(ROOT / 'requirements/runtime.txt') if pin.name == 'torch']
        if torch.version.cuda is None or torch.__version__.split('+')[0] not in pin.specifier:
            pytest.skip('another torch than the pinned one for CUDA')
        assert name == 'nvidia/cuda' and version.startswith(f'{torch.version.cuda}.')


def test_what_is_copied_is_in_the_repository(arguments: dict[str, list[str]]) -> None:
    assert all((ROOT / argument.split()[0]).exists() for argument in arguments['COPY'])
    # And nothing that git ignores, apart from the caches of tools.
    ignored = (ROOT / '.dockerignore').read_text().split()
    listed = subprocess.run(['git', 'ls-files'], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert not [path for path in listed if path.split('/')[0] in ignored and not path.endswith('.gitkeep')]
    assert {'.git', '.venv', 'data', 'work_dirs', '**/*.so'} <= set(ignored)


def test_pip_installs_all_in_the_pinned_versions(arguments: dict[str, list[str]]) -> None:
    runs = [Block('', '', 'bash', argument).commands() for argument in arguments['RUN']]
    commands = [command for run in runs for command in run if command[0] == 'pip']
    (package,) = (command for command in commands if '.[all]' in command)
    assert '--no-build-isolation' in package
    # Every extra of `all` is pinned by a file; tensorboard is among the tests'.
    files = {Path(word).stem for command in commands for word in command if word.startswith('requirements/')}
    (line,) = PROJECT['optional-dependencies']['all']
    extras = {extra for extra in Requirement(line).extras if (ROOT / f'requirements/{extra}.txt').exists()}
    assert extras | {'runtime', 'test', 'build', 'deploy-no-deps'} <= files
