"""The command `bioattn`: `bioattn train ...` runs tools/train.py, and so on, from any folder."""

import ast
import runpy
import sys
import textwrap
from pathlib import Path

from ..training.installed import FOLDER, how_to_install
from .help import WIDTH, print_styled

GROUPS = {
    'train and use': 'inspect-data train test predict demo make-mini-datasets',
    'look into': 'attention-maps attention-segmentation locality erf fit-position-bias model-stats robustness '
    'benchmark-extrapolation',
    'share': 'export publish-model',
    'convert': 'convert-checkpoint convert-ade20k make-shards',
}


def main() -> None:
    tools = find_tools()
    name, *args = sys.argv[1:] or ['--help']
    if name in ('-h', '--help'):
        print_help(tools)
        return
    if name not in tools:
        print(f'error: there is no command {name!r}: expected one of {", ".join(tools)}', file=sys.stderr)
        sys.exit(2)
    from .command_line import ToolParser  # not at the top: it loads PyTorch, which the help does without

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
    """The scripts of tools/ and tools/analysis by the name of their command."""
    folder = FOLDER / 'tools'
    scripts = (*sorted(folder.glob('*.py')), *sorted(folder.glob('*/*.py')))
    return {path.stem.replace('_', '-'): path for path in scripts}


def print_help(tools: dict[str, Path]) -> None:
    lines = ['usage: bioattn COMMAND [ARGUMENT ...]', '', 'The tools of bioattn_mm, from any folder.']
    longest = max(map(len, tools))
    for title, names in GROUPS.items():
        lines += ['', f'{title}:']
        for name in names.split():
            docstring = ast.get_docstring(ast.parse(tools[name].read_text(encoding='utf-8')))
            first, *others = textwrap.wrap(docstring.splitlines()[0], WIDTH - longest - 4)
            lines += [f'  {name:{longest}}  {first}', *(' ' * (longest + 4) + other for other in others)]
    lines += [
        '',
        'bioattn COMMAND --help explains a command, docs/get_started.md#pages names the page that says the rest.',
        f'A config is a file, or the name of one in {FOLDER / "configs"}:',
        '',
        '  bioattn train transnext/upernet_tiny_ade20k --mini',
        '  bioattn predict transnext/upernet_tiny_ade20k iter_160000.pth street.jpg',
    ]
    print_styled('\n'.join(lines))
