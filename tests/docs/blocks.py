"""The code blocks of README.md, CONTRIBUTING.md and docs/, and the commands in those of bash."""

import re
import shlex
import textwrap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LANGUAGES = ('bash', 'python')
# Blocks of these are no code to run; any other language is a slip, such as `sh` or `console`.
TEXT = ('', 'text', 'yaml', 'toml', 'json', 'bibtex')
BLOCK = r'^ *(?P<marks>```+|~~~+) *(?P<language>[\w+-]*)[^\n]*\n(?P<code>.*?)^ *(?P=marks) *$'
PART = re.compile(rf'{BLOCK}|^#+ +(?P<heading>[^\n]+?)(?: *\{{[^\n]*\}})?$', re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code under a heading of a page; the name of the second one under a heading is 'HEADING, 2'."""

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

    def commands(self) -> list[list[str]]:
        """Program and arguments of each command of a block of bash, without variables that are set before it."""
        commands = [[]]
        for line in self.lines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars='&|;')
            lexer.whitespace_split, lexer.commenters = True, ''
            for word in [*lexer, ';']:
                if word in ('&&', '||', '|', ';', '&'):
                    commands.append([])
                elif commands[-1] or not re.match(r'[A-Za-z_]\w*=', word):
                    commands[-1].append(word)
        return [words for words in commands if words]


def pages() -> list[str]:
    """README.md, CONTRIBUTING.md and all pages of docs/, seen from the repository."""
    return [
        'README.md',
        'CONTRIBUTING.md',
        *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob('docs/**/*.md')),
    ]


def read_blocks(page: str) -> list[Block]:
    """The blocks of bash and Python of a page."""
    blocks, heading, numbers = [], '', Counter()
    for part in PART.finditer((ROOT / page).read_text()):
        heading, language = (part['heading'] or heading).replace('`', ''), part['language']
        assert language in (None, *LANGUAGES, *TEXT), f'{page}: a block of {language!r}'
        if language in LANGUAGES:
            numbers[heading] += 1
            name = heading if numbers[heading] < 2 else f'{heading}, {numbers[heading]}'
            blocks.append(Block(page, name, language, textwrap.dedent(part['code'])))
    return blocks


def inline_code(page: str) -> list[str]:
    """The code in the running text of a page, `such as this`, with line breaks as spaces."""
    text = re.sub(BLOCK, '', (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    return [' '.join(code.split()) for code in re.findall(r'(?<!`)`([^`]+)`(?!`)', text)]
