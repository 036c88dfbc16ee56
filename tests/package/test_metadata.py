"""The files around the code agree: pyproject.toml, requirements/, setup.py, model-index.yml, Dockerfiles, ..."""

import ast
import re
import runpy
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from setuptools import Distribution

from bioattn_mm.training.installed import EXTRAS
from bioattn_mm.version import __version__

from ..docs.blocks import Block
from ..needs import module_needs, needs

pytestmark = module_needs('tomllib')  # of Python 3.11

from .project import PROJECT, PYPROJECT, ROOT, RUNTIME, pins  # noqa: E402

# What requirements/*.txt install for the development of the package itself.
DEVELOPMENT = {'peers.txt', 'build.txt', 'lint.txt', 'test.txt', 'wheel.txt', 'deploy-no-deps.txt'}
# Packages that are imported under another name.
DISTRIBUTIONS = dict(cv2='opencv-python-headless', grpc='grpcio', mlflow='mlflow-skinny', PIL='pillow')
DISTRIBUTIONS.update(faster_coco_eval='faster-coco-eval', imagecorruptions='imagecorruptions-imaug')
DISTRIBUTIONS.update(mmcv='onedl-mmcv', mmengine='onedl-mmengine', mmpretrain='onedl-mmpretrain')
DISTRIBUTIONS.update(mmdet='onedl-mmdetection', mmseg='onedl-mmsegmentation')


def extras() -> dict[str, list[Requirement]]:
    """The requirements of each extra but `all`, and under '' those of the package itself."""
    lines = {'': PROJECT['dependencies'], **PROJECT['optional-dependencies']}
    return {extra: [Requirement(line) for line in lines[extra]] for extra in lines if extra != 'all'}


def test_requirements_pin_what_the_package_asks_for_once() -> None:
    files = {path.name: list(pins(path)) for path in (ROOT / 'requirements').glob('*.txt')}
    names = [canonicalize_name(pin.name) for of_file in files.values() for pin in of_file]
    assert not {name for name in names if names.count(name) > 1}
    asked = {canonicalize_name(req.name): req for requirements in extras().values() for req in requirements}
    wanted = [*(files.keys() - DEVELOPMENT), 'test.txt']
    pinned = {canonicalize_name(pin.name): pin for file in wanted for pin in files[file]}
    of_tests = {canonicalize_name(pin.name) for pin in files['test.txt']} | {'playwright'}
    assert pinned.keys() - of_tests <= asked.keys() <= pinned.keys()
    for name, requirement in asked.items():
        assert requirement.specifier.contains(str(pinned[name].specifier).removeprefix('==')), requirement


def test_what_builds_the_package_is_pinned_and_documented() -> None:
    pinned = {pin.name: str(pin.specifier).removeprefix('==') for pin in pins(ROOT / 'requirements/build.txt')}
    asked = {requirement.name: requirement for requirement in map(Requirement, PYPROJECT['build-system']['requires'])}
    assert set(asked) <= set(pinned) and all(asked[name].specifier.contains(pinned[name]) for name in asked)
    # Without build isolation one installs them oneself.
    for page in ('docs/get_started.md', 'docs/troubleshooting.md'):
        (line, *others) = re.findall(r"pip install (.*'setuptools.*?' wheel)", (ROOT / page).read_text())
        named = {requirement.name: requirement for requirement in map(Requirement, line.replace("'", '').split())}
        assert not others and set(named) - {'torch'} == set(pinned), page
        assert all(named[name].specifier == asked[name].specifier for name in asked), page


def test_all_holds_every_extra_for_any_machine() -> None:
    (line,) = PROJECT['optional-dependencies']['all']
    assert Requirement(line).extras == set(extras()) - {'', 'bridges', 'docs'}


def test_missing_packages_are_blamed_on_an_extra_that_has_them() -> None:
    for package, extra in EXTRAS.items():
        names = {requirement.name for requirement in extras()[extra]} | {'mmdeploy'}  # installed by hand
        assert DISTRIBUTIONS.get(package, package) in names


def imported(file: Path) -> set[str]:
    """The packages that a file imports, without its own."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    packages = {name.partition('.')[0] for name in names} - set(sys.stdlib_module_names)
    return {DISTRIBUTIONS.get(name, name) for name in packages}


def test_every_package_that_is_imported_is_asked_for() -> None:
    asked = {requirement.name for requirements in extras().values() for requirement in requirements}
    # mmengine and torchvision bring the first four; mmdeploy is installed by hand, playwright for tests.
    asked |= {'matplotlib', 'pillow', 'yaml', 'yapf', 'mmdeploy', 'playwright', 'bioattn_mm'}
    for file in (*ROOT.glob('bioattn_mm/**/*.py'), *ROOT.glob('tools/**/*.py')):
        assert imported(file) <= asked, file


def test_the_runtime_alone_has_its_modules_and_packages() -> None:
    lines = sum(RUNTIME['optional-dependencies'].values(), RUNTIME['dependencies'])
    asked = {canonicalize_name(Requirement(line).name) for line in lines}
    pinned = {canonicalize_name(pin.name) for path in (ROOT / 'requirements').glob('*.txt') for pin in pins(path)}
    assert asked - {'pillow'} <= pinned  # which torchvision brings
    assert 'torch' not in asked and RUNTIME['requires-python'] == PROJECT['requires-python']
    for file in (ROOT / 'bioattn_mm/runtime').glob('*.py'):
        assert imported(file) <= asked, file
        # The file may import no module beside it but `errors`.
        assert set(re.findall(r'^ *from \.(\.\S+)', file.read_text(), flags=re.MULTILINE)) <= {'.errors'}, file


@pytest.fixture
def setup_py(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict]:
    """Runs setup.py with a command; returns the arguments with which it calls `setuptools.setup`."""

    def run(command: str = 'bdist_wheel') -> dict:
        arguments = {}
        monkeypatch.setattr('setuptools.setup', arguments.update)
        monkeypatch.setattr(sys, 'argv', ['setup.py', command])
        monkeypatch.setenv('PATH', '/usr/bin')  # which setup.py changes
        runpy.run_path(str(ROOT / 'setup.py'))
        return arguments

    for name in ('FORCE_CUDA', 'BIOATTN_MM_WITHOUT_OPS'):
        monkeypatch.delenv(name, raising=False)
    return run


def test_setup_compiles_the_operators_or_leaves_out_what_does_not_compile(setup_py: Callable, monkeypatch) -> None:
    fail = Mock(side_effect=RuntimeError('Error compiling objects for extension'))
    monkeypatch.setattr('torch.utils.cpp_extension.BuildExtension.build_extensions', fail)
    arguments = setup_py()
    (library,) = arguments['ext_modules']
    assert all((ROOT / source).is_file() for source in library.sources) and len(library.sources) >= 6
    command = arguments['cmdclass']['build_ext'](Distribution(dict(ext_modules=arguments['ext_modules'])))
    command.ensure_finalized()
    command.inplace = True  # for those who work on them
    with pytest.raises(RuntimeError, match='Error compiling'):
        command.build_extensions()
    command.inplace = False
    command.build_extensions()
    assert command.extensions == []


@pytest.mark.parametrize('command', ['bdist_wheel', 'editable_wheel', 'dist_info'])
def test_setup_without_torch_says_what_to_do(setup_py: Callable, monkeypatch, command: str) -> None:
    monkeypatch.setitem(sys.modules, 'torch', None)
    monkeypatch.setitem(sys.modules, 'torch.utils.cpp_extension', None)
    with pytest.raises(SystemExit, match='no-build-isolation; or set BIOATTN_MM_WITHOUT_OPS=1'):
        setup_py(command)
    # Nothing is compiled for these.
    assert setup_py('sdist') == setup_py('egg_info') == {}
    monkeypatch.setenv('BIOATTN_MM_WITHOUT_OPS', '1')
    assert setup_py(command) == {}


def test_setup_without_compilers(setup_py: Callable, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """It installs without operators, and ends where CUDA was asked for."""
    monkeypatch.setenv('CXX', '/nowhere/g++')
    assert setup_py() == {} and 'slower: there is no C++ compiler /nowhere/g++' in capsys.readouterr().out
    monkeypatch.setenv('FORCE_CUDA', '1')
    with pytest.raises(SystemExit, match='there is no C'):
        setup_py()
    monkeypatch.delenv('CXX')
    monkeypatch.setattr('torch.utils.cpp_extension.CUDA_HOME', '/nowhere')
    monkeypatch.setattr('torch.version.cuda', '12.8')
    with pytest.raises(SystemExit, match='cannot be compiled for CUDA: there is no /nowhere/bin/nvcc'):
        setup_py()


def test_a_wheel_has_the_files_that_the_package_reads() -> None:
    patterns = PYPROJECT['tool']['setuptools']['package-data']['bioattn_mm']
    folder = ROOT / 'bioattn_mm'
    read = {path for path in folder.rglob('*') if path.suffix in ('.jpg', '.png', '.json', '.css', '.js', '.txt')}
    assert read and read <= {path for pattern in patterns for path in folder.glob(pattern)}


@needs('modelindex')
def test_the_model_index_imports_every_metafile_and_is_valid() -> None:
    import modelindex

    imported = yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']
    assert imported == sorted(str(path.relative_to(ROOT)) for path in ROOT.glob('configs/*/metafile.yml'))
    # Paths of READMEs are given from the root, as in mmdet; the checker looks for them beside the metafile.
    errors = modelindex.load(str(ROOT / 'model-index.yml')).check(silent=True)
    assert not [error for error in errors if 'Path to README file' not in error]


def test_the_citation_is_of_this_version_and_names_every_paper() -> None:
    citation = yaml.safe_load((ROOT / 'CITATION.cff').read_text())
    assert citation['version'] == __version__ and {'cff-version', 'message', 'title', 'authors'} <= set(citation)
    metafiles = (yaml.safe_load(path.read_text()) for path in ROOT.glob('configs/*/metafile.yml'))
    systems = [metafile['Collections'][0] for metafile in metafiles]
    papers = {system['Paper']['Title']: system['Paper']['URL'] for system in systems if system['Name'] != 'Baselines'}
    assert {reference['title']: reference['url'] for reference in citation['references']} == papers
    for reference in citation['references']:
        assert {'type', 'authors', 'year'} <= set(reference)
        assert f', {reference["conference"]["name"]}]({reference["url"]})' in (ROOT / 'README.md').read_text()


def test_pre_commit_has_the_versions_of_make_lint() -> None:
    pinned = {pin.name: str(pin.specifier).removeprefix('==') for pin in pins(ROOT / 'requirements/lint.txt')}
    repositories = yaml.safe_load((ROOT / '.pre-commit-config.yaml').read_text())['repos']
    revisions = {
        hook['id'].split('-')[0]: repository['rev'].removeprefix('v')
        for repository in repositories
        for hook in repository['hooks']
    }
    assert revisions == dict(ruff=pinned['ruff'], clang=pinned['clang-format'])


SCRIPTS = [ROOT / 'Makefile', ROOT / '.ci/run', *(ROOT / 'tests/package').glob('*.*')]


@pytest.mark.parametrize('path', SCRIPTS, ids=lambda path: path.name)
def test_commands_that_seldom_run_name_tests_that_are_there(path: Path) -> None:
    named = re.findall(r'\btests(?:/\w+)+(?:\.(?:py|sh))?', path.read_text())
    assert not [name for name in named if not (ROOT / name).exists()]


@pytest.mark.parametrize('path', sorted((ROOT / 'docker').glob('Dockerfile.*')), ids=lambda path: path.name)
def test_dockerfiles_copy_what_is_there_and_install_what_is_pinned(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith('#')]
    arguments = defaultdict(list)
    for line in filter(None, '\n'.join(lines).replace('\\\n', ' ').splitlines()):
        instruction, argument = line.split(maxsplit=1)
        arguments[instruction].append(argument)

    (image,) = arguments['FROM']
    name, version = re.fullmatch(r'(\S+):(\d+\.\d+\.\d+)-\S+', image).groups()
    (pin,) = [pin for pin in pins(ROOT / 'requirements/runtime.txt') if pin.name == 'torch']
    if name == 'python':
        assert version in SpecifierSet(PROJECT['requires-python'])
    elif torch.version.cuda and torch.__version__.split('+')[0] in pin.specifier:
        # The toolkit compiles for the torch that is installed, so both are of one CUDA release.
        assert name == 'nvidia/cuda' and version.startswith(f'{torch.version.cuda}.')

    assert all((ROOT / argument.split()[0]).exists() for argument in arguments['COPY'])
    # And nothing that git ignores, apart from the caches of tools.
    ignored = (ROOT / '.dockerignore').read_text().split()
    listed = subprocess.run(['git', 'ls-files'], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert not [path for path in listed if path.split('/')[0] in ignored and not path.endswith('.gitkeep')]
    assert {'.git', '.venv', 'data', 'work_dirs', '**/*.so'} <= set(ignored)

    runs = [Block('', '', 'bash', argument).commands() for argument in arguments['RUN']]
    commands = [command for run in runs for command in run if command[0] == 'pip']
    (package,) = (command for command in commands if '.[all]' in command)
    assert '--no-build-isolation' in package
    # Every extra of `all` is pinned by a file; tensorboard is among the tests'.
    files = {Path(word).stem for command in commands for word in command if word.startswith('requirements/')}
    (line,) = PROJECT['optional-dependencies']['all']
    extras = {extra for extra in Requirement(line).extras if (ROOT / f'requirements/{extra}.txt').exists()}
    assert extras | {'runtime', 'test', 'build', 'deploy-no-deps'} <= files
