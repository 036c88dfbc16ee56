"""Every command in README.md and docs/ is one that its program takes, and names files that exist. Nothing is run."""

import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from fnmatch import fnmatch
from functools import cache
from io import StringIO
from pathlib import Path
from runpy import run_path

import pytest
from packaging.requirements import Requirement

from bioattn_mm.cli import main as bioattn_command
from bioattn_mm.cli.installed import find_config
from bioattn_mm.errors import InputError

from .blocks import ROOT, Block, Command, inline_code, pages, read_blocks

PAGES = [*pages(), *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob('configs/*/README.md'))]
# Words that the reader replaces: CONFIG, WORK_DIR.
PLACEHOLDER = re.compile(r'[A-Z][A-Z_]+')
# Paths that begin so are in the repository, and not a user's.
FOLDERS = tuple(
    f'{path.name}/' for path in ROOT.iterdir() if path.is_dir() and path.name not in ('data', 'work_dirs')
)
# Options in the running text that are of other programs than the tools.
OPTIONS_OF_OTHERS = {
    'pip': ['--no-build-isolation', '--no-deps', '--extra-index-url'],
    'mkdocs': ['--strict'],
    'docker': ['--build-arg', '--gpus', '--shm-size', '--user'],
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
    """A config is one of the repository, a word to replace, or a file that a training or the user has written."""
    theirs = (
        PLACEHOLDER.fullmatch(name) or name.startswith('work_dirs/') or ('/' not in name and name.endswith('.py'))
    )
    assert theirs or Path(find_config(name)).is_file(), f'there is no config {name}'


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
    while words and words[0] in ('-u', '-s'):
        words = words[1:]
    if words[:1] == ['-m']:
        check_module(*words[1:])
    elif words and words[0].startswith('tools/'):
        parse(words[0], words[1:], monkeypatch)
    else:
        # A script of benchmarks/ or docs/, which `expand` has found; `...` for any.
        assert words == ['...'] or words[0].startswith(FOLDERS) or words[0] == '-c', f'what is {words[0]}?'


def check_module(name: str, *words: str) -> None:
    """`python -m`: of this package, or another that the tests import."""
    if name == 'bioattn_mm':
        script = Path(words[0])
        found = [folder for folder in (ROOT, *map(Path, sys.path)) if (folder / script).is_file()]
        assert found or fnmatch(words[0], '[!.]*.py'), f'there is no {script}'
        if len(script.parts) > 1:
            assert found, f'there is no {script}'
    elif name.startswith('bioattn_mm.'):
        path = ROOT / name.replace('.', '/')
        assert path.with_suffix('.py').is_file() or (path / '__main__.py').is_file(), f'there is no module {name}'
    else:
        assert name in ('pytest', 'pip', 'venv', 'http.server'), f'what is {name}?'


def check_launcher(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """tools/*.sh: the rest goes to tools/train.py or tools/test.py."""
    name = Path(words[0]).name
    number, script = {'dist_train.sh': (1, 'train'), 'dist_test.sh': (2, 'test'), 'slurm_train.sh': (3, 'train')}[
        name
    ]
    fixed, rest = words[1:][:number], words[1:][number:]
    if name == 'slurm_train.sh':
        fixed = fixed[2:]
        if rest and not rest[0].startswith('-'):
            rest = ['--work-dir', *rest]
    else:
        assert re.fullmatch(r'[1-9]\d*|GPUS', rest[0]), f'{rest[0]} processes'
        rest = rest[1:]
    parse(f'tools/{script}.py', [*fixed, *rest], monkeypatch)


def check_bioattn(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if words in (['--help'], ['-h'], []):
        return
    name, *options = bioattn_command.OPTIONS.get(words[0], (words[0],))[:2]
    tools = bioattn_command.find_tools()
    assert name in tools, f'there is no command {name}'
    path = f'tools/{tools[name].relative_to(bioattn_command.FOLDER / "tools")}'
    parse(path, [*words[1:], *options], monkeypatch)


def check_make(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    makefile = (ROOT / 'Makefile').read_text()
    for word in words:
        name, equals, value = word.partition('=')
        if equals:
            assert re.search(rf'^{name} *\??=|\$\({name}\)', makefile, re.MULTILINE), f'make knows no {name}'
            if name == 'CONFIG':
                check_config(value)
            for extra in value.split() if name == 'EXTRA' else ():
                assert f'.ready-{extra}:' in makefile, f'make setup has no EXTRA={extra}'
        else:
            assert re.search(rf'^{name}:', makefile, re.MULTILINE), f'make has no target {name}'


def check_pip(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from ..package.test_metadata import PROJECT

    assert words[0] in ('install', 'wheel', 'download', 'list', 'show'), f'pip {words[0]}'
    for option, word in zip(['', *words], words):
        if option == '-r':
            assert (ROOT / word).is_file(), f'there is no {word}'
        elif '[' in word:
            requirement = Requirement(re.sub(r'^\.(?=\[)', 'bioattn_mm', word))
            if requirement.name == 'bioattn_mm':
                unknown = requirement.extras - set(PROJECT['optional-dependencies'])
                assert not unknown, f'bioattn_mm has no extra {unknown}'


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
    if '-m' in words:
        check_module(*words[words.index('-m') + 1 :])


def no_check(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of which nothing is known here."""


CHECKS: dict[str, Callable[[list[str], pytest.MonkeyPatch], None]] = {
    'bioattn': check_bioattn,
    'docker': check_docker,
    'make': check_make,
    'pip': check_pip,
    'python': check_python,
    'torchrun': check_torchrun,
    **dict.fromkeys(
        (
            'apt',
            'apt-get',
            'cd',
            'cp',
            'git',
            'mim',
            'mkdir',
            'pre-commit',
            'source',
            'sudo',
            'tensorboard',
            'unzip',
            'wget',
        ),
        no_check,
    ),
}


def check(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    if not command.words:  # variables alone
        return
    program, *words = expand(command.words)
    if program.startswith('tools/') and program.endswith('.sh'):
        check_launcher([program, *words], monkeypatch)
    else:
        assert program in CHECKS, f'no check for the program {program}: add it to CHECKS'
        CHECKS[program](words, monkeypatch)


@pytest.mark.parametrize(
    ('line', 'message'),
    [
        ('python tools/train.py configs/transnext/upernet_tiny_ade20k.py --no-such', 'unrecognized arguments'),
        ('python tools/train.py configs/transnext/none.py', 'there is no configs/transnext/none.py'),
        ('python tools/predict.py CONFIG CHECKPOINT street.jpg --amp float8', 'invalid choice'),
        ('python tools/none.py', 'there is no tools/none.py'),
        ('bioattn tran transnext/upernet_tiny_ade20k', 'there is no command tran'),
        ('bioattn train transnext/none', 'there is no config transnext/none'),
        ('tools/dist_train.sh CONFIG many', 'many processes'),
        ('tools/slurm_train.sh gpu upernet CONFIG --no-such', 'unrecognized arguments'),
        ('make none', 'make has no target none'),
        ("make setup EXTRA='deploy none'", 'no EXTRA=none'),
        ("pip install '.[none]'", 'bioattn_mm has no extra'),
        ('python -m bioattn_mm.none', 'there is no module'),
        ('python -m bioattn_mm mmdet/none.py', 'there is no mmdet/none.py'),
        ('pyhton x.py', 'no check for the program pyhton'),
    ],
)
def test_commands_that_are_wrong(line: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (command,) = Block('page.md', 'Title', 'bash', line).commands()
    with pytest.raises(AssertionError, match=message):
        check(command, monkeypatch)


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
    return set(re.findall(r'--[a-z][\w-]*', text.getvalue()))


@pytest.mark.parametrize('page', PAGES)
def test_tools_and_options_in_the_text_exist(page: str) -> None:
    tools = {path.relative_to(ROOT).as_posix() for path in (ROOT / 'tools').rglob('*.py')}
    everywhere = {option for path in tools for option in options(path)}
    everywhere.update(option for of_one in OPTIONS_OF_OTHERS.values() for option in of_one)
    failures = []
    for code in inline_code(page):
        words = code.split()
        words = words[1:] if words[0] == 'python' else words
        known = everywhere
        if words and (match := re.fullmatch(r'tools/[\w/]+\.(py|sh)', words[0])):
            if not (ROOT / words[0]).is_file():
                failures.append(f'{code}: there is no {words[0]}')
            elif match[1] == 'py':
                known = options(words[0])
        elif words[:1] == ['bioattn'] and len(words) > 1:
            if words[1] not in {*bioattn_command.find_tools(), *bioattn_command.OPTIONS, '--help', 'COMMAND', '...'}:
                failures.append(f'{code}: bioattn has no command {words[1]}')
        elif not words or not words[0].startswith('--'):
            continue
        for word in words:
            option = re.match(r'--[a-z][\w-]*|', word)[0]
            if option and option not in known:
                failures.append(f'{code}: there is no option {option}')
    assert not failures, '\n'.join(failures)
