"""The help of the command line: arguments in groups, 100 columns wide, in colours where a terminal shows it."""

import argparse
import shutil
import textwrap
from typing import IO

from rich.console import Console
from rich.text import Text

WIDTH = min(100, shutil.get_terminal_size((100, 24)).columns)
# The help begins with what everybody needs: positional arguments, and the first of these options up to `NUM_FIRST`.
FIRST, NUM_FIRST = ('--data', '--images', '--out', '--epochs'), 3
# The options that several commands have. What a command has alone comes before them.
GROUPS = {
    'data': '--data --train-data --val-data --reduce-zero-label --as-rgb --mini --images --max-images --size --split '
    '--skip-bad-data --shards --shuffle-shards --balance-classes --fraction --test-set --test-root --corrupt '
    '--attack --epsilon',
    'model': '--backbone --from-scratch --load-from --timm --compare --bias-mode --tta --slide --whole '
    '--cfg-options --trust-checkpoint',
    'schedule': '--epochs --resume --dry-run --seed --deterministic',
    'precision and speed': '--device --amp --batch-size --compile --cuda-graphs',
    'processes': '--launcher --strategy --hang-timeout',
    'output': '--out --work-dir --show-dir --format --score-thr --metric --log',
}


class GroupedParser(argparse.ArgumentParser):
    """A parser whose help has the arguments in groups, and a usage of one line."""

    color = False  # from Python 3.14 on argparse has colours of its own

    def _get_formatter(self) -> argparse.HelpFormatter:
        return argparse.RawDescriptionHelpFormatter(self.prog, width=WIDTH)

    def parse_known_intermixed_args(self, *arguments: object) -> tuple[argparse.Namespace, list[str]]:
        self.usage = self.format_usage()  # positional arguments have no number of words while options are parsed
        return super().parse_known_intermixed_args(*arguments)

    def format_usage(self) -> str:
        formatter, actions = self._get_formatter(), self._get_positional_actions()
        words = [formatter._format_args(action, action.metavar or action.dest) for action in actions]
        return self.usage or ' '.join(['usage:', self.prog, *words, '[OPTION ...]']) + '\n'

    def format_help(self) -> str:
        by_name = {
            (action.option_strings or [action.dest])[-1]: action for action in self._actions[1:]
        }  # -h is first
        first = [name for name in by_name if not name.startswith('-')]
        first += [name for name in FIRST if name in by_name][: max(0, NUM_FIRST - len(first))]
        groups = {title: names.split() for title, names in GROUPS.items()}
        own = [name for name in by_name if not any(name in names for names in groups.values())]
        formatter = self._get_formatter()
        for title, names in {'start here': first, 'of this command alone': own, **groups}.items():
            formatter.start_section(title)
            formatter.add_arguments([by_name.pop(name) for name in names if name in by_name])
            formatter.end_section()
        about = [textwrap.fill(part, WIDTH) + '\n' for part in (self.description or '').strip().split('\n\n')]
        return '\n'.join([self.format_usage(), '\n'.join(about), formatter.format_help(), f'{self.epilog}\n'])

    def print_help(self, file: IO[str] | None = None) -> None:
        print_styled(self.format_help(), file)


def print_styled(text: str, file: IO[str] | None = None) -> None:
    """Print the text of a help, with the titles and the options in colours where it goes to a terminal."""
    styled = Text(text.rstrip('\n'))
    styled.highlight_regex(r'(?m)^\S.*:$', 'bold yellow')
    styled.highlight_regex(r'(?<![\w-])--?[a-z][\w-]*', 'cyan')
    Console(file=file, highlight=False).print(styled, soft_wrap=True)
