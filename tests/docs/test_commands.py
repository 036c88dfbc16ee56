"""Every command in README.md and docs/ is one that its program takes, and names files that exist. Nothing is run."""

import re
import sys
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from runpy import run_path

import pytest
from packaging.requirements import Requirement

from bioattn_mm.cli import main as bioattn_command
from bioattn_mm.errors import InputError
from bioattn_mm.training.installed import find_configs

from .blocks import ROOT, inline_code, pages, read_blocks

PAGES = [*pages(), *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob('configs/*/README.md'))]
# Configs that the repository need not have: words that the reader replaces, what trainings write, what pages show.
OF_THE_READER = re.compile(r'[A-Z][A-Z_]+|work_dirs/.*')
SHOWN = {block.file for page in pages() for block in read_blocks(page) if block.language == 'python' and block.file}
# Paths that begin so are in the repository, and not a reader's.
FOLDERS = ('benchmarks/', 'bioattn_mm/', 'configs/', 'docker/', 'docs/', 'requirements/', 'tests/', 'tools/')
# Options in the running text that are of other programs than the tools.
OPTIONS_OF_OTHERS = '--no-build-isolation --no-deps --extra-index-url --strict --build-arg --gpus --shm-size --user '
OPTIONS_OF_OTHERS += '--volume'
# The scripts of several processes: the tool, and which of their words are the tool's.
LAUNCHERS = {
    'tools/dist_train.sh': ('tools/train.py', slice(0, 1), slice(2, None)),
    'tools/dist_test.sh': ('tools/test.py', slice(0, 2), slice(3, None)),
    'tools/slurm_train.sh': ('tools/train.py', slice(2, 3), slice(4, None)),
}
# Programs of whose arguments only files of the repository are looked at.
OTHERS = ('cd', 'cp', 'git', 'mim', 'pre-commit', 'sbatch', 'source')


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@cache
def tool(path: str) -> dict:
    """What a script of tools/ defines; it does not run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, 'path', [*sys.path])
        return run_path(path, run_name='documented')


def parse(path: str, words: list[str]) -> None:
    """Parse arguments as the tool itself does, and look for the configs that they name."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, 'argv', [path, *words])
            args = vars(tool(path)['parse_args']())
    except SystemExit as exit_:
        assert not exit_.code, 'the tool refuses it, as its line above says'
        return  # --help
    configs = args.get('config', args.get('configs')) or []
    configs = [configs] if isinstance(configs, str) else configs
    for config in [*configs, *(words[0] for words in args.get('compare') or [])]:
        if not OF_THE_READER.fullmatch(config) and config not in SHOWN:
            assert all(Path(path).is_file() for path in find_configs(config)), f'there is no config {config}'


def expand(word: str) -> list[str]:
    """A word with patterns of the repository's files expanded; each such file must exist."""
    if not word.startswith(FOLDERS):
        return [word]
    paths = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(word))
    assert paths, f'there is no {word}'
    return paths


def check_python(words: list[str]) -> None:
    """A tool, another script, or `-m`: a module, pytest, or the package itself, which runs a script of another."""
    if words[0].startswith('tools/'):
        parse(words[0], words[1:])
    elif words[:2] == ['-m', 'bioattn_mm']:
        assert any((folder / words[2]).is_file() for folder in (ROOT, *map(Path, sys.path))), f'no {words[2]}'
    elif words[0] == '-m':
        module = ROOT / words[1].replace('.', '/') / '__main__.py'
        assert words[1] == 'pytest' or module.is_file(), f'there is no module {words[1]}'
    else:
        assert words[0].startswith(FOLDERS) or words[0] in ('-c', 'setup.py', '...'), f'what is {words[0]}?'


def check_bioattn(words: list[str]) -> None:
    if words not in (['--help'], []):
        tools = bioattn_command.find_tools()
        assert words[0] in tools, f'there is no command {words[0]}'
        parse(f'tools/{tools[words[0]].relative_to(bioattn_command.FOLDER / "tools")}', words[1:])


def check_make(words: list[str]) -> None:
    makefile = (ROOT / 'Makefile').read_text()
    for name, equals, value in (word.partition('=') for word in words):
        known = rf'^{name} *\??=|\$\({name}\)' if equals else rf'^{name}:'
        assert re.search(known, makefile, re.MULTILINE), f'make knows no {name}'
        for extra in value.split() if name == 'EXTRA' else ():
            assert (ROOT / f'requirements/{extra}.txt').is_file(), f'make setup has no EXTRA={extra}'


def check_pip(words: list[str]) -> None:
    from ..package.project import PROJECT, RUNTIME  # not where Python has no tomllib

    for word in words:
        if '[' in word:
            requirement = Requirement(re.sub(r'^\./packaging/(?=\w)|^\.(?=\[)', 'bioattn_mm', word))
            project = RUNTIME if requirement.name == 'bioattn_mmruntime' else PROJECT
            assert requirement.extras <= set(project['optional-dependencies']), word


def check(command: list[str]) -> None:
    program, *words = (expanded for word in command for expanded in expand(word))
    if program in LAUNCHERS:
        path, *own = LAUNCHERS[program]
        parse(path, [word for part in own for word in words[part]])
    elif program == 'python':
        check_python(words)
    elif program == 'torchrun':
        check_python(words[words.index('-m') :])
    elif program == 'bioattn':
        check_bioattn(words)
    elif program == 'bioattn-runtime':
        parse('tools/predict.py', words)
    elif program == 'make':
        check_make(words)
    elif program == 'pip':
        check_pip(words)
    elif program == 'docker':
        (image,) = (index for index, word in enumerate(words) if word.startswith('bioattn_mm:'))
        assert (ROOT / 'docker' / words[image].replace('bioattn_mm:', 'Dockerfile.')).is_file(), words[image]
        if words[0] == 'run':  # what runs in a container is a command like the others
            check(words[image + 1 :])
    else:
        assert program in OTHERS, f'no check for the program {program}'


@pytest.mark.parametrize('page', PAGES)
def test_every_command_is_one_that_its_program_takes(page: str) -> None:
    failures = []
    for block in read_blocks(page):
        for command in block.commands() if block.language == 'bash' else ():
            try:
                check(command)
            except (AssertionError, InputError) as error:
                failures.append(f'{block}: {" ".join(command)}: {str(error).splitlines()[0]}')
    assert not failures, '\n'.join(failures)


@cache
def options() -> set[str]:
    """The options of all tools, from their help."""
    text = StringIO()
    with redirect_stdout(text):
        for path in ROOT.glob('tools/**/*.py'):
            parse(path.relative_to(ROOT).as_posix(), ['--help'])
        parse('tools/predict.py', ['end2end.onnx', '--help'])
    return {*OPTIONS_OF_OTHERS.split(), *re.findall(r'--[a-z][\w-]*', text.getvalue())}


def unknown(code: str) -> list[str]:
    """What does not exist of a tool, a command of `bioattn` or an option in the running text."""
    program, *words = code.removeprefix('python ').split()
    if program == 'bioattn':
        commands = {*bioattn_command.find_tools(), 'COMMAND', '...'}
        return [word for word in words[:1] if word not in commands and not word.startswith('-')]
    is_tool = re.fullmatch(r'tools/[\w/]+\.(py|sh)', program)
    if is_tool and not (ROOT / program).is_file():
        return [program]
    used = re.findall(r'(?<!\S)--[a-z][\w-]*', code) if is_tool or program.startswith('--') else []
    return [option for option in used if option not in options()]


@pytest.mark.parametrize('page', PAGES)
def test_tools_and_options_in_the_text_exist(page: str) -> None:
    assert not {code: unknown(code) for code in inline_code(page) if code.strip() and unknown(code)}
