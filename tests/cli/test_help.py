"""The help of every tool: groups, two lines for an argument, colours for terminals alone."""

import io
import re
import runpy
import sys

import pytest

from bioattn_mm.cli import help
from bioattn_mm.cli.command_line import ToolParser
from bioattn_mm.cli.help import GROUPS, print_styled

from ..conftest import ROOT
from ..needs import needs

TOOLS = [path for path in sorted((ROOT / 'tools').rglob('*.py')) if 'ToolParser(' in path.read_text()]
ENTRY = re.compile(r'  (\S.*?)(  +\S.*)?')


def entries(help_text: str) -> dict[str, int]:
    """The arguments of a help with the number of lines that say what each is for."""
    found, name = {}, None
    for line in help_text.partition('Example')[0].splitlines():
        if match := ENTRY.fullmatch(line):
            name = match[1]
            assert name not in found
            found[name] = int(bool(match[2]))
        elif line.startswith(' ' * 24):
            found[name] += 1
    return found


def parser_of(tool: object, monkeypatch: pytest.MonkeyPatch) -> ToolParser:
    """The parser of a tool, which it makes before it parses."""
    made = []
    for name in ('parse_args', 'parse_intermixed_args'):
        monkeypatch.setattr(ToolParser, name, lambda parser, *_: made.append(parser) or sys.exit())
    monkeypatch.setattr(sys, 'argv', [str(tool)])
    with pytest.raises(SystemExit):
        runpy.run_path(str(tool))['parse_args']()
    return made[0]


@needs('imagecorruptions', 'lmfit')
def test_arguments_of_every_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(help, 'WIDTH', 100)
    for tool in TOOLS:
        parser = parser_of(tool, monkeypatch)
        text = parser.format_help()
        listed = entries(text)
        shown = [action for action in parser._actions if action.help != '==SUPPRESS==' and action.dest != 'help']
        assert len(listed) == len(shown), tool.name
        assert {name: lines for name, lines in listed.items() if not 1 <= lines <= 2} == {}, tool.name
        assert max(map(len, text.partition('Example')[0].splitlines())) <= 100, tool.name


def test_usage_has_the_positional_arguments(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = parser_of(ROOT / 'tools/predict.py', monkeypatch)
    monkeypatch.undo()
    for argument in ('--help', '--unknown'):
        with pytest.raises(SystemExit):
            parser.parse_intermixed_args([argument])
        usage = ''.join(capsys.readouterr()).splitlines()[0]
        assert usage.endswith('predict.py CONFIG [CHECKPOINT] [INPUT ...] [OPTION ...]')


def test_what_everybody_needs_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    text = parser_of(ROOT / 'tools/train.py', monkeypatch).format_help()
    sections = re.findall(r'(?m)^(\S.*):$', text)
    assert sections[:-1] == ['start here', *GROUPS] and sections[-1] == 'Examples'
    assert list(entries(text))[:3] == ['CONFIG', '--data DIR', '--epochs N']


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('TERM', 'xterm')
    for name in ('NO_COLOR', 'FORCE_COLOR'):
        monkeypatch.delenv(name, raising=False)
    text = 'data:\n  --data DIR  own data\n'
    piped, terminal = io.StringIO(), io.StringIO()
    terminal.isatty = lambda: True
    print_styled(text, piped)
    print_styled(text, terminal)
    assert piped.getvalue() == text and '\x1b[36m--data\x1b[0m' in terminal.getvalue()
