"""The pages say what they say in the words of the field and in sentences that end; `make lint` runs this."""

import re
from collections.abc import Iterator

import pytest

from .blocks import ROOT, pages

LONGEST = 40  # words of a sentence outside of lists and tables
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


def prose(text: str) -> Iterator[tuple[str, str]]:
    """Kind, 'text' or 'list', and words of each paragraph, without code, tables, headings, pictures and addresses."""
    text = re.sub(r'^ *(```+|~~~+).*?^ *\1 *$', '', text, flags=re.DOTALL | re.MULTILINE)
    for paragraph in re.split(r'\n\s*\n', text):
        lines = [line for line in paragraph.splitlines() if not re.match(r'\s*(\||#|!?\[!|!\[|:::|<)', line)]
        kind = 'list' if lines and re.match(r'\s*([-*]|\d+\.) |  ', lines[0]) else 'text'
        words = re.sub(r'\]\([^)]*\)', ']', ' '.join(' '.join(lines).split()))
        yield kind, re.sub(r'`[^`]*`', 'CODE', words)


def faults(text: str) -> list[str]:
    found = []
    for kind, words in prose(text):
        found += [
            f'{match[0]!r}: {say}' for bad, say in WORDS.items() for match in re.finditer(rf'\b{bad}|{bad}', words)
        ]
        sentences = re.split(r'(?<=[.:;?!])\s+', words) if kind == 'text' else ()
        found += [f'{len(s.split())} words: {s[:60]}...' for s in sentences if len(s.split()) > LONGEST]
    return found


@pytest.mark.parametrize('page', pages())
def test_words_and_sentences(page: str) -> None:
    assert not faults((ROOT / page).read_text())


def test_what_is_found() -> None:
    assert faults('ReLU in the place of GELU.') == ["'in the place of': instead of"]
    assert faults('word ' * 41 + '.')[0].startswith('42 words') and not faults('- ' + 'word ' * 41 + '.')
