"""Every equation, table, figure and footnote that code, configs and pages cite is in the paper that they name."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ('bioattn_mm', 'configs', 'docs', 'tools', 'benchmarks')
SUFFIXES = ('.py', '.md', '.yml', '.h', '.cpp', '.cu', '.cuh')
NUMBER = r'\d+(?![\d.]*\d)'
CITATION = re.compile(
    r'\b(?P<kind>eqs?|equations?|tables?|tabs?|figures?|figs?|footnotes?)\b\.?\s+\(?'
    rf'(?P<numbers>{NUMBER}(?:\s*(?:,|-|–|to|and|or)\s*{NUMBER})*)',
    re.IGNORECASE,
)
# The numbers of the equations, tables, figures and footnotes of each paper; of a supplement those that the main text
# names. What each is stands in docs/papers.
PAPERS = dict(
    TransNeXt=dict(equ=range(1, 23), tab=range(1, 16), fig=range(1, 10), foo=()),
    ConViT=dict(equ=range(1, 9), tab=range(1, 4), fig=(*range(1, 9), 10, 15), foo=range(1, 5)),
    PerViT=dict(equ=range(1, 14), tab=range(1, 7), fig=range(1, 9), foo=range(1, 10)),
    GAB=dict(equ=range(1, 4), tab=range(1, 5), fig=range(1, 8), foo=()),
    VARS=dict(equ=range(1, 26), tab=range(1, 6), fig=range(1, 10), foo=range(1, 8)),
)
# Sources beside the five, whose numbers are not looked up.
OTHERS = ('Performer', 'GFNet', 'Deformable DETR', 'NVIDIA', 'Hu et al')
NAMES = re.compile('|'.join([*PAPERS, *OTHERS]))
# A file of one system is about its paper, where it names none.
SYSTEMS = {name.lower(): name for name in PAPERS} | dict(
    peripheral='PerViT', gpsa='ConViT', gaussian='GAB', reconstruction='VARS'
)


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs of comments, docstrings and pages, with the number of their first line."""
    lines = [(number, line.strip().lstrip('#').strip()) for number, line in enumerate(text.splitlines(), start=1)]
    for has_text, group in itertools.groupby(lines, key=lambda line: bool(line[1])):
        if has_text:
            numbers, found = zip(*group)
            yield numbers[0], ' '.join(found)


def numbers_of(text: str) -> list[int]:
    """'7, 9 to 11 and 14' to [7, 9, 10, 11, 14]."""
    found = []
    for first, last in re.findall(rf'({NUMBER})(?:\s*(?:-|–|to)\s*({NUMBER}))?', text):
        found += range(int(first), int(last or first) + 1)
    return found


def paper_of(paragraph: str, place: int, default: str | None) -> str | None:
    """The source named last before a place, else next after it, else that of the file."""
    names = [(match.start(), match[0]) for match in NAMES.finditer(paragraph)]
    before = [name for start, name in names if start < place]
    after = [name for start, name in names if start >= place]
    if default and default not in dict.fromkeys(before + after) and not set(before + after) & set(OTHERS):
        return default
    return before[-1] if before else after[0] if after else default


def citations(path: Path, text: str) -> Iterator[tuple[int, str, str | None, list[int]]]:
    """Line, kind, paper and numbers of each citation of a file, whose name says what it is about."""
    words = re.split(r'[/_.-]', str(path).lower())
    default = next((paper for word, paper in SYSTEMS.items() if word in words), None)
    for first, paragraph in paragraphs(text):
        rows = paragraph.split('| |') if path.suffix == '.md' else [paragraph]
        for row in rows:
            for match in CITATION.finditer(row):
                kind = re.sub('eqs?$', 'equ', match['kind'].lower())[:3]
                yield first, kind, paper_of(row, match.start(), default), numbers_of(match['numbers'])


@pytest.mark.parametrize('folder', FOLDERS)
def test_what_is_cited_is_there(folder: str) -> None:
    wrong, number = [], 0
    for path in sorted((ROOT / folder).rglob('*')):
        if path.suffix not in SUFFIXES or not path.is_file():
            continue
        place = path.relative_to(ROOT)
        for line, kind, paper, cited in citations(place, path.read_text()):
            number += 1
            if paper is None:
                wrong.append(f'{place}:{line}: {kind} {cited} of no paper')
            elif paper in PAPERS:
                lacking = [one for one in cited if one not in PAPERS[paper][kind]]
                wrong += [f'{place}:{line}: {paper} has no {kind} {one}' for one in lacking]
    assert not wrong, '\n'.join(wrong)
    assert number
