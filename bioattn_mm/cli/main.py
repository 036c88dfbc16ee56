"""The command `bioattn`: the tools of an installed package, from any folder.

`bioattn train ...` runs tools/train.py, and so on: a tool is one script, and everything about it is there.
"""

import ast
import runpy
import sys
from pathlib import Path

from ..run_config.installed import FOLDER, how_to_install
from .command_line import ToolParser


def main() -> None:
    """Run the tool that the command line names, or list the tools."""
    tools = find_tools()
    name, *args = sys.argv[1:] or ['--help']
    if name in ('-h', '--help'):
        print_help(tools)
        return
    if name not in tools:
        print(f'error: there is no command {name!r}: expected one of {", ".join(commands(tools))}', file=sys.stderr)
        sys.exit(2)
    ToolParser.command = f'bioattn {name}'
    sys.argv[1:] = args
    try:
        runpy.run_path(str(tools[name]), run_name='__main__')
    except ModuleNotFoundError as error:
        if how_to_install(error) is None:
            raise
        print(f'error: {how_to_install(error)}', file=sys.stderr)
        sys.exit(2)


def find_tools() -> dict[str, Path]:
    """The scripts below tools/ by the name of their command: train, ..., and those of tools/analysis."""
    folder = FOLDER / 'tools'
    scripts = (*sorted(folder.glob('*.py')), *sorted(folder.glob('*/*.py')))
    return {path.stem.replace('_', '-'): path for path in scripts}


def commands(tools: dict[str, Path]) -> dict[str, str]:
    """All commands with what they do, the first line of the tool's docstring."""
    return {
        name: ast.get_docstring(ast.parse(path.read_text(encoding='utf-8'))).splitlines()[0]
        for name, path in tools.items()
    }


def print_help(tools: dict[str, Path]) -> None:
    """Print the commands, one line each."""
    print('usage: bioattn COMMAND [ARGUMENT ...]\n\nThe tools of bioattn_mm, from any folder.\n')
    lines = commands(tools)
    width = max(map(len, lines))
    for name, line in lines.items():
        print(f'  {name:{width}}  {line}')
    print(
        '\n'
        'bioattn COMMAND --help explains a command. A config is a file, or the name of one that comes with the\n'
        f'package, in {FOLDER / "configs"}:\n'
        '\n'
        '  bioattn train transnext/upernet_tiny_ade20k --mini\n'
        '  bioattn predict transnext/upernet_tiny_ade20k iter_160000.pth street.jpg'
    )
