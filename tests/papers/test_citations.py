"""Every equation, table, figure and footnote that code, configs and pages cite is in the paper that they name."""

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


def paper_of(row: str, place: int, default: str | None) -> str | None:
    """The source named last before a place, else next after it, else that of the file."""
    before, after = (NAMES.findall(part) for part in (row[:place], row[place:]))
    if default and default not in before + after and not set(before + after) & set(OTHERS):
        return default
    return before[-1] if before else after[0] if after else default


def citations(path: Path, text: str) -> Iterator[tuple[str, str | None, list[int]]]:
    """Kind, paper and numbers of each citation of a file, whose name says what it is about."""
    words = re.split(r'[/_.-]', str(path).lower())
    default = next((paper for word, paper in SYSTEMS.items() if word in words), None)
    for row in re.split(r'\n[\s#]*\n|\n(?=\|)', text):  # a paragraph, or a row of a table
        row = re.sub(r'\s*\n[\s#]*', ' ', row)
        for match in CITATION.finditer(row):
            kind = re.sub('eqs?$', 'equ', match['kind'].lower())[:3]
            ranges = re.findall(rf'({NUMBER})(?:\s*(?:-|–|to)\s*({NUMBER}))?', match['numbers'])
            numbers = [number for first, last in ranges for number in range(int(first), int(last or first) + 1)]
            yield kind, paper_of(row, match.start(), default), numbers


@pytest.mark.parametrize('folder', FOLDERS)
def test_what_is_cited_is_there(folder: str) -> None:
    wrong, number = [], 0
    for path in sorted((ROOT / folder).rglob('*')):
        if path.suffix in SUFFIXES and path.is_file():
            place = path.relative_to(ROOT)
            for kind, paper, cited in citations(place, path.read_text()):
                number += 1
                if paper is None or (paper in PAPERS and not set(cited) <= set(PAPERS[paper][kind])):
                    wrong.append(f'{place}: {paper or "no paper"} has no {kind} {cited}')
    assert number and not wrong, '\n'.join(wrong)
