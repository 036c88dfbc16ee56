"""pyproject.toml, requirements/ and the code name the same packages; setup.py compiles or says why it does not."""

import ast
import re
import runpy
import sys
from unittest.mock import Mock

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from setuptools import Distribution

from bioattn_mm.training.installed import EXTRAS

from ..needs import module_needs

pytestmark = module_needs('tomllib')  # of Python 3.11

from .project import PROJECT, PYPROJECT, ROOT, RUNTIME, RUNTIME_PYPROJECT, pins  # noqa: E402

# What requirements/*.txt install for the development of the package itself.
DEVELOPMENT = ('peers.txt', 'build.txt', 'lint.txt', 'test.txt', 'wheel.txt', 'deploy-no-deps.txt')
# Packages that are imported under another name.
DISTRIBUTIONS = dict(cv2='opencv-python-headless', grpc='grpcio', mlflow='mlflow-skinny')
DISTRIBUTIONS.update(faster_coco_eval='faster-coco-eval', imagecorruptions='imagecorruptions-imaug')
DISTRIBUTIONS.update(mmcv='onedl-mmcv', mmengine='onedl-mmengine', mmpretrain='onedl-mmpretrain')
DISTRIBUTIONS.update(mmdet='onedl-mmdetection', mmseg='onedl-mmsegmentation')


def extras() -> dict[str, list[Requirement]]:
    """The requirements of each extra but `all`, and under '' those of the package itself."""
    lines = {'': PROJECT['dependencies'], **PROJECT['optional-dependencies']}
    return {extra: [Requirement(line) for line in lines[extra]] for extra in lines if extra != 'all'}


def test_requirements_pin_what_the_package_asks_for() -> None:
    files = [path for path in (ROOT / 'requirements').glob('*.txt') if path.name not in DEVELOPMENT]
    pinned = {canonicalize_name(pin.name): pin for path in files for pin in pins(path)}
    test_pins = {canonicalize_name(pin.name): pin for pin in pins(ROOT / 'requirements' / 'test.txt')}
    asked = {canonicalize_name(req.name): req for requirements in extras().values() for req in requirements}
    assert set(pinned) - {'playwright'} <= set(asked), 'pinned, and no extra asks for it'
    for name in asked:
        pin = {**test_pins, **pinned}[name]
        assert asked[name].specifier.contains(str(pin.specifier).removeprefix('==')), f'{asked[name]}, pinned {pin}'


def test_every_package_is_pinned_once() -> None:
    names = [canonicalize_name(pin.name) for path in (ROOT / 'requirements').glob('*.txt') for pin in pins(path)]
    assert not {name for name in names if names.count(name) > 1}


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


def test_every_package_that_is_imported_is_asked_for() -> None:
    asked = {requirement.name for requirements in extras().values() for requirement in requirements}
    # mmengine and torchvision bring the first four; mmdeploy is installed by hand, playwright for tests.
    asked |= {'matplotlib', 'PIL', 'yaml', 'yapf', 'mmdeploy', 'playwright', 'bioattn_mm', *sys.stdlib_module_names}
    for file in (*ROOT.glob('bioattn_mm/**/*.py'), *ROOT.glob('tools/**/*.py')):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            else:
                continue
            for name in {name.partition('.')[0] for name in names}:
                assert DISTRIBUTIONS.get(name, name) in asked, f'{file} imports {name}'


def test_the_runtime_alone_has_its_modules_and_packages() -> None:
    packages = RUNTIME_PYPROJECT['tool']['setuptools']['packages']
    lines = sum(RUNTIME['optional-dependencies'].values(), RUNTIME['dependencies'])
    asked = {canonicalize_name(Requirement(line).name) for line in lines}
    pinned = {canonicalize_name(pin.name) for path in (ROOT / 'requirements').glob('*.txt') for pin in pins(path)}
    assert asked - {'pillow'} <= pinned  # which torchvision brings
    assert 'torch' not in asked and RUNTIME['requires-python'] == PROJECT['requires-python']
    imported, used = set(), set()
    for package in packages:
        for file in (ROOT / package.replace('.', '/')).glob('*.py'):
            own = [*package.split('.'), file.stem]
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ImportFrom) and node.level and package.endswith('runtime'):
                    used.add('.'.join([*own[: -node.level], *(node.module or '').split('.')][:2]))
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    imported.add((package, node.module.partition('.')[0]))
                elif isinstance(node, ast.Import):
                    imported |= {(package, alias.name.partition('.')[0]) for alias in node.names}
    names = {name for package, name in imported if package.endswith('runtime')} - set(sys.stdlib_module_names)
    assert {DISTRIBUTIONS.get(name, name).lower().replace('pil', 'pillow') for name in names} <= asked
    assert used <= {'bioattn_mm.errors', 'bioattn_mm.runtime.files', *packages}


@pytest.fixture
def setup_py(monkeypatch: pytest.MonkeyPatch):
    """Runs setup.py with a command; returns the arguments with which it calls `setuptools.setup`."""

    def run(command: str) -> dict:
        arguments = {}
        monkeypatch.setattr('setuptools.setup', arguments.update)
        monkeypatch.setattr(sys, 'argv', ['setup.py', command])
        monkeypatch.setenv('PATH', '/usr/bin')  # which setup.py changes
        runpy.run_path(str(ROOT / 'setup.py'))
        return arguments

    for name in ('FORCE_CUDA', 'BIOATTN_MM_WITHOUT_OPS'):
        monkeypatch.delenv(name, raising=False)
    return run


def test_setup_compiles_the_operators(setup_py) -> None:
    (library,) = setup_py('bdist_wheel')['ext_modules']
    assert all((ROOT / source).is_file() for source in library.sources) and len(library.sources) >= 6


@pytest.mark.parametrize('command', ['bdist_wheel', 'editable_wheel', 'dist_info'])
def test_setup_without_torch_says_what_to_do(setup_py, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setitem(sys.modules, 'torch', None)
    monkeypatch.setitem(sys.modules, 'torch.utils.cpp_extension', None)
    with pytest.raises(SystemExit, match='no-build-isolation; or set BIOATTN_MM_WITHOUT_OPS=1'):
        setup_py(command)
    # Nothing is compiled for these.
    assert setup_py('sdist') == setup_py('egg_info') == {}
    monkeypatch.setenv('BIOATTN_MM_WITHOUT_OPS', '1')
    assert setup_py(command) == {}


def test_setup_without_a_compiler_installs_without_operators(setup_py, monkeypatch, capsys) -> None:
    monkeypatch.setenv('CXX', '/nowhere/g++')
    assert setup_py('bdist_wheel') == {}
    printed = capsys.readouterr().out
    assert printed.startswith('bioattn_mm: installed without compiled operators, attention runs in PyTorch, slower: ')
    assert printed.endswith(': there is no C++ compiler /nowhere/g++\n')
    monkeypatch.setenv('FORCE_CUDA', '1')
    with pytest.raises(SystemExit, match='FORCE_CUDA=1, but the operators cannot be compiled: there is no C'):
        setup_py('bdist_wheel')


def test_what_does_not_compile_is_left_out_where_it_is_not_worked_on(setup_py, monkeypatch) -> None:
    fail = Mock(side_effect=RuntimeError('Error compiling objects for extension'))
    monkeypatch.setattr('torch.utils.cpp_extension.BuildExtension.build_extensions', fail)
    arguments = setup_py('bdist_wheel')
    command = arguments['cmdclass']['build_ext'](Distribution(dict(ext_modules=arguments['ext_modules'])))
    command.ensure_finalized()
    command.inplace = True
    with pytest.raises(RuntimeError, match='Error compiling'):
        command.build_extensions()
    command.inplace = False
    command.build_extensions()
    assert command.extensions == []


def test_setup_ends_where_cuda_was_asked_for_and_cannot_be(setup_py, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('FORCE_CUDA', '1')
    monkeypatch.setattr('torch.utils.cpp_extension.CUDA_HOME', '/nowhere')
    monkeypatch.setattr('torch.version.cuda', '12.8')
    with pytest.raises(SystemExit, match='cannot be compiled for CUDA: there is no /nowhere/bin/nvcc'):
        setup_py('bdist_wheel')


def test_a_wheel_has_the_files_that_the_package_reads() -> None:
    patterns = PYPROJECT['tool']['setuptools']['package-data']['bioattn_mm']
    folder = ROOT / 'bioattn_mm'
    read = {path for path in folder.rglob('*') if path.suffix in ('.jpg', '.png', '.json', '.css', '.js', '.txt')}
    assert read and read <= {path for pattern in patterns for path in folder.glob(pattern)}
