"""The rows of docs/results.md from `results/rows.yaml`, which says what each entry is."""

from pathlib import Path
from typing import NamedTuple

import yaml


class Data(NamedTuple):
    """A data set, which comes as an archive.

    Its folder is the one that the archive unpacks to, '' where it has none of its own; the layout is what is in it.
    """

    archive: str
    title: str
    layout: str
    source: str
    folder: str = ''
    num_val: int = 0


class Row(NamedTuple):
    """A training and its test: `config` may have options, `options` are words in which {data} is a folder."""

    name: str
    model: str
    data: str
    config: str
    options: tuple[str, ...]
    seeds: tuple[int, ...]
    tests: tuple[str, ...]


class Difference(NamedTuple):
    """Two rows whose difference a claim is about: `metric` of `first` minus `other_metric` of `second`."""

    what: str
    first: str
    second: str
    metric: str
    other_metric: str | None = None


class Group(NamedTuple):
    """Rows that are read together, in a table of the page."""

    name: str
    title: str
    text: str
    metrics: dict[str, str]
    rows: tuple[Row, ...]
    claim: str
    differences: tuple[Difference, ...]


def joined(texts: str | list[str]) -> str:
    """A text, or several in a row."""
    return texts if isinstance(texts, str) else ' '.join(texts)


def group_of(name: str, entry: dict) -> Group:
    """A group with all its rows: those of systems, of the peers in their recipe, and others."""
    seeds, options = entry.get('seeds', 1), joined(entry['options'])

    def row(row_name: str, model: str, config: str, more: str = '') -> Row:
        number = seeds.get(row_name.removeprefix(f'{name}-'), 1) if isinstance(seeds, dict) else seeds
        tests = tuple(entry.get('tests', ()))
        return Row(
            row_name, model, entry['data'], config, (*options.split(), *more.split()), (*range(number),), tests
        )

    rows = [row(f'{name}-{system}', MODELS[system], path) for system, path in entry.get('systems', {}).items()]
    for peer, (model, backbone) in PEERS.items() if 'peers' in entry else ():
        rows.append(row(f'{name}-{peer}', model, f'{entry["peers"]} --backbone {backbone}'))
    rows += [row(each, *entries) for each, entries in entry.get('rows', {}).items()]
    differences = tuple(Difference(*each) for each in entry.get('differences', ()))
    text, claim = joined(entry['text']), entry.get('claim', '')
    return Group(name, entry['title'], text, entry['metrics'], tuple(rows), claim, differences)


DOCUMENT = yaml.safe_load((Path(__file__).parent / 'results/rows.yaml').read_text(encoding='utf-8'))
MODELS, PEERS = DOCUMENT['models'], DOCUMENT['peers']
DATA = {name: Data(**entry) for name, entry in DOCUMENT['data'].items()}
GROUPS = tuple(group_of(name, entry) for name, entry in DOCUMENT['groups'].items())
ROWS = {row.name: row for group in GROUPS for row in group.rows}
