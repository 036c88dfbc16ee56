"""Every command in README.md and docs/ is one that its program takes, and names files that exist. Nothing is run."""

import re
import sys
from collections.abc import Callable
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

from .blocks import ROOT, Command, inline_code, pages, read_blocks

PAGES = [*pages(), *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob('configs/*/README.md'))]
# Words that the reader replaces: CONFIG, WORK_DIR.
PLACEHOLDER = re.compile(r'[A-Z][A-Z_]+')
# Paths that begin so are in the repository, and not a reader's.
FOLDERS = ('benchmarks/', 'bioattn_mm/', 'configs/', 'docker/', 'docs/', 'requirements/', 'tests/', 'tools/')
# Configs that the pages show.
SHOWN = {block.file for page in pages() for block in read_blocks(page) if block.language == 'python' and block.file}
# Options in the running text that are of other programs than the tools.
OPTIONS_OF_OTHERS = {
    'pip': ['--no-build-isolation', '--no-deps', '--extra-index-url'],
    'mkdocs': ['--strict'],
    'docker': ['--build-arg', '--gpus', '--shm-size', '--user', '--volume'],
}


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
        if exit_.code:
            raise AssertionError(errors.getvalue().splitlines()[-1]) from None
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


def expand(words: list[str]) -> list[str]:
    """Words with patterns of the repository's files expanded; each such file must exist."""
    expanded = []
    for word in words:
        if word.startswith(FOLDERS):
            paths = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(word))
            assert paths, f'there is no {word}'
            expanded += paths
        else:
            expanded.append(word)
    return expanded


def check_python(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if words[0] == '-m':
        check_module(*words[1:])
    elif words[0].startswith('tools/'):
        parse(words[0], words[1:], monkeypatch)
    else:
        # `expand` has found scripts of the repository.
        assert words[0].startswith(FOLDERS) or words[0] in ('-c', 'setup.py', '...'), f'what is {words[0]}?'


def check_module(name: str, *words: str) -> None:
    """`python -m NAME`: the package itself, which runs a script of another, a module of it, or pytest."""
    if name == 'bioattn_mm':
        folders = (ROOT, *map(Path, sys.path))
        assert any((folder / words[0]).is_file() for folder in folders), f'there is no {words[0]}'
    elif name.startswith('bioattn_mm.'):
        assert (ROOT / name.replace('.', '/') / '__main__.py').is_file(), f'there is no module {name}'
    else:
        assert name == 'pytest', f'what is {name}?'


# The scripts of several processes: the place of the config, how many words come before the arguments of the tool, and
# the tool.
LAUNCHERS = {
    'tools/dist_train.sh': (0, 2, 'tools/train.py'),
    'tools/dist_test.sh': (0, 3, 'tools/test.py'),
    'tools/slurm_train.sh': (2, 3, 'tools/train.py'),
}


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
    if words in (['--help'], ['-h'], []):
        return
    name, tools = words[0], bioattn_command.find_tools()
    assert name in tools, f'there is no command {name}'
    path = f'tools/{tools[name].relative_to(bioattn_command.FOLDER / "tools")}'
    parse(path, words[1:], monkeypatch)


def check_make(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    makefile = (ROOT / 'Makefile').read_text()
    for word in words:
        name, equals, value = word.partition('=')
        if equals:
            assert re.search(rf'^{name} *\??=|\$\({name}\)', makefile, re.MULTILINE), f'make knows no {name}'
            if name == 'CONFIG':
                check_config(value)
            for extra in value.split() if name == 'EXTRA' else ():
                assert (ROOT / f'requirements/{extra}.txt').is_file(), f'make setup has no EXTRA={extra}'
        else:
            assert re.search(rf'^{name}:', makefile, re.MULTILINE), f'make has no target {name}'


def check_pip(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from ..package.project import PROJECT, RUNTIME

    assert words[0] in ('install', 'wheel', 'download', 'list', 'show'), f'pip {words[0]}'
    for option, word in zip(['', *words], words):
        if option == '-r':
            assert (ROOT / word).is_file(), f'there is no {word}'
        elif '[' in word:
            requirement = Requirement(re.sub(r'^\./packaging/(?=\w)|^\.(?=\[)', 'bioattn_mm', word))
            project = {'bioattn_mm': PROJECT, 'bioattn_mmruntime': RUNTIME}.get(requirement.name)
            if project is not None:
                unknown = requirement.extras - set(project['optional-dependencies'])
                assert not unknown, f'{project["name"]} has no extra {unknown}'


def check_docker(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`expand` has found the Dockerfile after -f; what runs in a container is a command like the others."""
    images = [f'bioattn_mm:{path.suffix[1:]}' for path in (ROOT / 'docker').iterdir()]
    image = [index for index, word in enumerate(words) if word.startswith('bioattn_mm:')]
    assert image and words[image[0]] in images, f'expected one of {images}'
    if words[0] == 'run':
        check(Command(words[image[0] + 1 :]), monkeypatch)
    else:
        assert words[0] == 'build', f'docker {words[0]}'


def check_torchrun(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    check_module(*words[words.index('-m') + 1 :])


def check_runtime(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    parse('tools/predict.py', words, monkeypatch)


CHECKS: dict[str, Callable[[list[str], pytest.MonkeyPatch], None]] = {
    'bioattn': check_bioattn,
    'bioattn-runtime': check_runtime,
    'docker': check_docker,
    'make': check_make,
    'pip': check_pip,
    'python': check_python,
    'torchrun': check_torchrun,
}
# Programs whose arguments are not looked at, except for files of the repository.
OTHERS = ('cd', 'cp', 'git', 'mim', 'pre-commit', 'sbatch', 'source')


def check(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    if not command.words:  # variables alone
        return
    program, *words = expand(command.words)
    if program in LAUNCHERS:
        check_launcher(program, words, monkeypatch)
    elif program not in OTHERS:
        assert program in CHECKS, f'no check for the program {program}: add it to CHECKS'
        CHECKS[program](words, monkeypatch)


@pytest.mark.parametrize('page', PAGES)
def test_every_command_is_one_that_its_program_takes(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = []
    for block in read_blocks(page):
        for command in block.commands() if block.language == 'bash' else ():
            try:
                check(command, monkeypatch)
            except AssertionError as error:
                failures.append(f'{block}: {command}: {str(error).splitlines()[0]}')
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
    """The options of all tools, and those of other programs."""
    tools = [path.relative_to(ROOT).as_posix() for path in ROOT.glob('tools/**/*.py')]
    return set().union(*OPTIONS_OF_OTHERS.values(), *map(options, tools))


def unknown(code: str) -> list[str]:
    """What does not exist of a tool, a command of `bioattn` or an option in the running text."""
    program, *words = code.removeprefix('python ').split()
    known = all_options()
    if re.fullmatch(r'tools/[\w/]+\.(py|sh)', program):
        if not (ROOT / program).is_file():
            return [program]
        if program.endswith('.py'):
            known = options(program)
    elif program == 'bioattn':
        commands = {*bioattn_command.find_tools(), 'COMMAND', '...'}
        return [word for word in words[:1] if word not in commands and not word.startswith('-')]
    elif not program.startswith('--'):
        return []
    return [option for option in re.findall(r'(?<!\S)--[a-z][\w-]*', code) if option not in known]


@pytest.mark.parametrize('page', PAGES)
def test_tools_and_options_in_the_text_exist(page: str) -> None:
    assert not {code: unknown(code) for code in inline_code(page) if code.strip() and unknown(code)}
