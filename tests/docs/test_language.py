"""The pages say what they say in the words of the field and in short sentences; `make lint` runs this.

Code counts as one word, the address of a link as none. A colon ends a sentence: a list or an explanation follows. A
semicolon does so in tables alone. Items of at most four words between two commas are a list and do not count.
"""

import re
from collections.abc import Iterator

import pytest

from .blocks import ROOT, pages

LONGEST = 25  # words of a sentence
# The subject comes first: these words begin a clause in front of it.
CLAUSES = 'Although|As|Because|Before|If|Once|Unless|Until|When|Where|While'
# Our own words, and what the field says.
WORDS = {
    r'in the place of': 'instead of',
    r'their time\b': 'kernel time',
    r'numbers (of|in) (a|the|each) (tensor|map|matrix|norm)': 'elements of',
    r'(takes|has|needs|leaves|is) (no |more |less )?room\b': 'memory or space',
    r'is all there is': 'only',
    r'(?<!-)\bother \w+ than\b': 'NOUNS other than',
    r'(can|could|that) (not )?(cannot )?be had\b': 'is available',
    r'(one|you) makes? of (it|them)\b': 'predicts',
    r'(?<![\w-])launch(es)? of kernels': 'kernel launch',
    r'other librar(y|ies) that (we|this package) (builds?|stands?) on': 'upstream library',
    r'helper sessions?|work ?place|sub-?agents?': 'nothing of how it was written',
    r'/(work|tmp|home|root)/\w': 'a path of the repository',
}


def prose(text: str) -> Iterator[tuple[str, bool]]:
    """Each paragraph, item of a list and cell of a table, and whether it is a cell."""
    text = re.sub(r'^ *(```+|~~~+).*?^ *\1 *$', '', text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r'^\| before \| after \|.*?\n\n', '', text, flags=re.DOTALL | re.MULTILINE)  # shows faults
    text = re.sub(r'`[^`]*`', 'CODE', text)
    text = re.sub(r'!\[[^]]*\]\([^)]*\)|(?<=\])\([^)]*\)', '', text)
    text = re.sub(r'^(#|:::|<).*', '', text, flags=re.MULTILINE)
    for part in re.split(r'\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) |\|)', text):
        table = part.lstrip().startswith('|')
        for words in part.split('|') if table else [part]:
            yield ' '.join(words.split()), table


def length(sentence: str) -> int:
    """Words without the short items of a list."""
    first, *parts = sentence.split(', ')
    items = [part for part in parts[:-1] if len(part.split()) > 4]
    return len(' '.join([first, *items, *parts[-1:]]).split())


def faults(text: str) -> list[str]:
    found = []
    for words, table in prose(text):
        found += [
            f'{match[0]!r}: {say}' for bad, say in WORDS.items() for match in re.finditer(rf'\b{bad}|{bad}', words)
        ]
        for sentence in re.split(r'(?<=[.:;?!])\s+' if table else r'(?<=[.:?!])\s+', words):
            if length(sentence) > LONGEST:
                found.append(f'{length(sentence)} words: {sentence[:60]}...')
            if match := re.match(rf'(- )?({CLAUSES})\b', sentence):
                found.append(f'{match[0]!r}: a clause in front of its subject: {sentence[:60]}...')
    return found


@pytest.mark.parametrize('page', [*pages(), 'benchmarks/README.md'])
def test_words_and_sentences(page: str) -> None:
    assert not faults((ROOT / page).read_text())
