"""Every command in README.md and docs/ is one that its program takes, and names files that exist. Nothing is run."""

import re
import sys
from contextlib import redirect_stderr, redirect_stdout
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
# Words that the reader replaces: CONFIG, WORK_DIR.
PLACEHOLDER = re.compile(r'[A-Z][A-Z_]+')
# Paths that begin so are in the repository, and not a reader's.
FOLDERS = ('benchmarks/', 'bioattn_mm/', 'configs/', 'docker/', 'docs/', 'requirements/', 'tests/', 'tools/')
# Configs that the pages show.
SHOWN = {block.file for page in pages() for block in read_blocks(page) if block.language == 'python' and block.file}
# Options in the running text that are of other programs than the tools.
OPTIONS_OF_OTHERS = '--no-build-isolation --no-deps --extra-index-url --strict --build-arg --gpus --shm-size --user '
OPTIONS_OF_OTHERS += '--volume'
# The scripts of several processes: the place of the config, how many words come before the arguments of the tool, and
# the tool.
LAUNCHERS = {
    'tools/dist_train.sh': (0, 2, 'tools/train.py'),
    'tools/dist_test.sh': (0, 3, 'tools/test.py'),
    'tools/slurm_train.sh': (2, 3, 'tools/train.py'),
}
# Programs of whose arguments only files of the repository are looked at.
OTHERS = ('cd', 'cp', 'git', 'mim', 'pre-commit', 'sbatch', 'source')


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@cache
def tool(path: str) -> dict:
    """What a script of tools/ defines; it does not run."""
    folders = [*sys.path]
    try:
        return run_path(path, run_name='documented')
    finally:
        sys.path[:] = folders


def parse(path: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse arguments as the tool itself does, and look for the configs that they name."""
    monkeypatch.setattr(sys, 'argv', [path, *words])
    errors = StringIO()
    try:
        with redirect_stderr(errors):
            args = vars(tool(path)['parse_args']())
    except SystemExit as exit_:
        assert not exit_.code, errors.getvalue().splitlines()[-1]
        return  # --help
    except InputError as error:
        raise AssertionError(str(error)) from None
    configs = args.get('config', args.get('configs')) or []
    configs = [configs] if isinstance(configs, str) else configs
    for config in [*configs, *(words[0] for words in args.get('compare') or [])]:
        check_config(config)


def check_config(name: str) -> None:
    """A config is one of the repository, one that a training has written or a page shows, or a word to replace."""
    of_the_reader = PLACEHOLDER.fullmatch(name) or name.startswith('work_dirs/') or name in SHOWN
    found = of_the_reader or all(Path(path).is_file() for path in find_configs(name))
    assert found, f'there is no config {name}'


def expand(word: str) -> list[str]:
    """A word with patterns of the repository's files expanded; each such file must exist."""
    if not word.startswith(FOLDERS):
        return [word]
    paths = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(word))
    assert paths, f'there is no {word}'
    return paths


def check_python(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool, another script, or `-m`: a module, pytest, or the package itself, which runs a script of another."""
    if words[0].startswith('tools/'):
        parse(words[0], words[1:], monkeypatch)
    elif words[:2] == ['-m', 'bioattn_mm']:
        assert any((folder / words[2]).is_file() for folder in (ROOT, *map(Path, sys.path))), f'no {words[2]}'
    elif words[0] == '-m':
        module = ROOT / words[1].replace('.', '/') / '__main__.py'
        assert words[1] == 'pytest' or module.is_file(), f'there is no module {words[1]}'
    else:
        assert words[0].startswith(FOLDERS) or words[0] in ('-c', 'setup.py', '...'), f'what is {words[0]}?'


def check_launcher(script: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    place, number, path = LAUNCHERS[script]
    own, rest = words[place:number], words[number:]
    if script != 'tools/slurm_train.sh':
        processes = own.pop()
        assert re.fullmatch(r'[1-9]\d*|GPUS', processes), f'{processes} processes'
    elif rest and not rest[0].startswith('-'):
        rest = ['--work-dir', *rest]
    parse(path, [*own, *rest], monkeypatch)


def check_bioattn(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if words not in (['--help'], []):
        tools = bioattn_command.find_tools()
        assert words[0] in tools, f'there is no command {words[0]}'
        parse(f'tools/{tools[words[0]].relative_to(bioattn_command.FOLDER / "tools")}', words[1:], monkeypatch)


def check_make(words: list[str]) -> None:
    makefile = (ROOT / 'Makefile').read_text()
    for name, equals, value in (word.partition('=') for word in words):
        known = rf'^{name} *\??=|\$\({name}\)' if equals else rf'^{name}:'
        assert re.search(known, makefile, re.MULTILINE), f'make knows no {name}'
        if name == 'CONFIG':
            check_config(value)
        for extra in value.split() if name == 'EXTRA' else ():
            assert (ROOT / f'requirements/{extra}.txt').is_file(), f'make setup has no EXTRA={extra}'


def check_pip(words: list[str]) -> None:
    from ..package.project import PROJECT, RUNTIME

    for word in words:
        if '[' in word:
            requirement = Requirement(re.sub(r'^\./packaging/(?=\w)|^\.(?=\[)', 'bioattn_mm', word))
            if project := {'bioattn_mm': PROJECT, 'bioattn_mmruntime': RUNTIME}.get(requirement.name):
                unknown = requirement.extras - set(project['optional-dependencies'])
                assert not unknown, f'{project["name"]} has no extra {unknown}'


def check(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    program, *words = (expanded for word in command for expanded in expand(word))
    if program in LAUNCHERS:
        check_launcher(program, words, monkeypatch)
    elif program == 'python':
        check_python(words, monkeypatch)
    elif program == 'torchrun':
        check_python(words[words.index('-m') :], monkeypatch)
    elif program == 'bioattn':
        check_bioattn(words, monkeypatch)
    elif program == 'bioattn-runtime':
        parse('tools/predict.py', words, monkeypatch)
    elif program == 'make':
        check_make(words)
    elif program == 'pip':
        check_pip(words)
    elif program == 'docker':
        (image,) = (index for index, word in enumerate(words) if word.startswith('bioattn_mm:'))
        assert (ROOT / 'docker' / words[image].replace('bioattn_mm:', 'Dockerfile.')).is_file(), words[image]
        if words[0] == 'run':  # what runs in a container is a command like the others
            check(words[image + 1 :], monkeypatch)
    else:
        assert program in OTHERS, f'no check for the program {program}'


@pytest.mark.parametrize('page', PAGES)
def test_every_command_is_one_that_its_program_takes(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = []
    for block in read_blocks(page):
        for command in block.commands() if block.language == 'bash' else ():
            try:
                check(command, monkeypatch)
            except AssertionError as error:
                failures.append(f'{block}: {" ".join(command)}: {str(error).splitlines()[0]}')
    assert not failures, '\n'.join(failures)


@cache
def options(path: str) -> set[str]:
    """The options of a tool, from its help."""
    text = StringIO()
    with pytest.MonkeyPatch.context() as monkeypatch, redirect_stdout(text):
        parse(path, ['--help'], monkeypatch)
        if path == 'tools/predict.py':
            parse(path, ['end2end.onnx', '--help'], monkeypatch)
    return set(re.findall(r'--[a-z][\w-]*', text.getvalue()))


@cache
def all_options() -> set[str]:
    tools = [path.relative_to(ROOT).as_posix() for path in ROOT.glob('tools/**/*.py')]
    return set(OPTIONS_OF_OTHERS.split()).union(*map(options, tools))


def unknown(code: str) -> list[str]:
    """What does not exist of a tool, a command of `bioattn` or an option in the running text."""
    program, *words = code.removeprefix('python ').split()
    if program == 'bioattn':
        commands = {*bioattn_command.find_tools(), 'COMMAND', '...'}
        return [word for word in words[:1] if word not in commands and not word.startswith('-')]
    is_tool = re.fullmatch(r'tools/[\w/]+\.(py|sh)', program)
    if is_tool and not (ROOT / program).is_file():
        return [program]
    if not is_tool and not program.startswith('--'):
        return []
    known = options(program) if is_tool and program.endswith('.py') else all_options()
    return [option for option in re.findall(r'(?<!\S)--[a-z][\w-]*', code) if option not in known]


@pytest.mark.parametrize('page', PAGES)
def test_tools_and_options_in_the_text_exist(page: str) -> None:
    assert not {code: unknown(code) for code in inline_code(page) if code.strip() and unknown(code)}
