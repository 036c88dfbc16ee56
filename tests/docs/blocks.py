"""The code blocks of README.md, CONTRIBUTING.md and docs/, and the commands in those of bash."""

import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
LANGUAGES = ('bash', 'python')
# Blocks of these are no code to run; any other language is a slip, such as `sh` or `console`.
TEXT = ('', 'text', 'yaml', 'toml', 'json', 'bibtex')

FENCE = re.compile(r'(?P<indent> *)(?P<marks>`{3,}|~{3,}) *(?P<info>.*)')
HEADING = re.compile(r'#+ +(?P<text>.+?)(?: *\{.*\})?')


@dataclass(frozen=True)
class Command:
    """One command of a block.

    Attributes:
        words: Program and arguments, as the shell splits them; patterns are not expanded.
        variables: Environment variables that are set for it.
    """

    words: list[str]
    variables: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return ' '.join(self.words)


@dataclass(frozen=True)
class Block:
    """A block of code in a page.

    Attributes:
        page: Path of the page below the repository, such as 'docs/own_data.md'.
        name: The heading above it; for the second block under a heading 'HEADING, 2'.
        language: The language that the page names.
        text: The code.
    """

    page: str
    name: str
    language: str
    text: str

    def __str__(self) -> str:
        return f'{self.page}: {self.name}'

    @property
    def file(self) -> str | None:
        """The file that a block of Python shows, if its first line names one: '# mask_rcnn.py'."""
        match = re.match(r'# ([\w/]+\.py)\n', self.text)
        return match and match[1]

    def lines(self) -> list[str]:
        """The lines of a block of bash without comments; a line that goes on in the next is one with it."""
        lines = (re.sub(r'(^|\s)#.*', '', line).strip() for line in self.text.replace('\\\n', ' ').splitlines())
        return [line for line in lines if line]

    def commands(self) -> list[Command]:
        """The commands of a block of bash, in their order."""
        commands = []
        for line in self.lines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars='&|;')
            lexer.whitespace_split, lexer.commenters = True, ''
            words = []
            for word in [*lexer, ';']:
                if word not in ('&&', '||', '|', ';', '&'):
                    words.append(word)
                elif words:
                    commands.append(_command(words))
                    words = []
        return commands


def _command(words: list[str]) -> Command:
    variables = {}
    while words and (match := re.fullmatch(r'([A-Za-z_]\w*)=(.*)', words[0])):
        variables[match[1]] = match[2]
        words = words[1:]
    return Command(words, variables)


def pages() -> list[str]:
    """README.md, CONTRIBUTING.md and all pages of docs/, seen from the repository."""
    return [
        'README.md',
        'CONTRIBUTING.md',
        *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob('docs/**/*.md')),
    ]


def read_blocks(page: str, text: str | None = None) -> list[Block]:
    """The blocks of bash and Python of a page.

    Args:
        page: Path of the page below the repository.
        text: Its text, by default that of the file.

    Raises:
        ValueError: A block has another language, or does not end.
    """
    return [block for block in _all_blocks(page, text) if block.language in LANGUAGES]


def _all_blocks(page: str, text: str | None) -> Iterator[Block]:
    lines = ((ROOT / page).read_text() if text is None else text).splitlines()
    heading, numbers, start, first = '', Counter(), None, 0
    for number, line in enumerate(lines):
        fence = FENCE.fullmatch(line)
        if start is not None:
            if fence and not fence['info'] and fence['marks'].startswith(start['marks']):
                language = re.match(r'[\w+-]*', start['info'])[0]
                if language not in (*LANGUAGES, *TEXT):
                    raise ValueError(f'{page}:{first}: a block of {language!r}: expected one of {LANGUAGES + TEXT}')
                numbers[heading] += language in LANGUAGES
                name = heading if numbers[heading] < 2 else f'{heading}, {numbers[heading]}'
                code = textwrap.dedent('\n'.join(lines[first:number])) + '\n'
                yield Block(page, name, language, code)
                start = None
        elif fence:
            start, first = fence, number + 1
        elif match := HEADING.fullmatch(line):
            heading = match['text'].replace('`', '')
    if start is not None:
        raise ValueError(f'{page}:{first}: the block does not end')


def inline_code(page: str, text: str | None = None) -> list[str]:
    """The code in the running text of a page, `such as this`, with line breaks as spaces."""
    text = (ROOT / page).read_text() if text is None else text
    text = re.sub(r'^ *(```+|~~~+).*?^ *\1 *$', '', text, flags=re.DOTALL | re.MULTILINE)
    return [' '.join(code.split()) for code in re.findall(r'(?<!`)`([^`]+)`(?!`)', text)]
