"""docs/results.md: what was measured on real data, made from the records that `results.py` has written."""

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure
from results_rows import DATA, GROUPS, Difference, Group, Row

from bioattn_mm.runtime.files import atomic_write, read_json

RECORDS = Path(__file__).resolve().parent / 'results'
TRAINED = 'trained, not tested'
# All records by row and seed.
Records = dict[tuple[str, int], dict]

INTRODUCTION = """\
# Results on real data

You compare backbones trained from random weights under the same conditions, and run any row again.

```bash
python benchmarks/results.py --list
python benchmarks/results.py cifar10-convit-005 --data archives
python benchmarks/results.py --table
```

Name a row or a section; an interrupted run goes on. The last command writes this page from `benchmarks/results`,
which has each run's `bioattn train` command. `archives` is a folder with

|archive|holds|from|
|---|---|---|
{archives}

Trainings are short and say nothing about longer ones. A figure is the mean over seeds, with the range. Hours are
of the processor, for training and tests:
{machines}.
"""


def read_file(path: Path) -> dict[str, dict]:
    """The records of a file, by their names."""
    return read_json(path, 'take it from the repository again') if path.exists() else {}


def read_record(row: Row, seed: int) -> dict | None:
    """What was measured in a run; None if it has not begun."""
    return read_file(RECORDS / f'{row.data}.json').get(f'{row.name}-seed{seed}')


def write_record(row: Row, seed: int, record: dict) -> None:
    """Put a record into its file, in which other processes may write others at the same time."""
    path = RECORDS / f'{row.data}.json'
    folder = os.open(RECORDS, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        records = read_file(path) | {f'{row.name}-seed{seed}': record}
        lines = [f'{json.dumps(name)}: {json.dumps(records[name])}' for name in sorted(records)]
        with atomic_write(path) as file:
            file.write(('{\n' + ',\n'.join(lines) + '\n}\n').encode())
    finally:
        os.close(folder)


def read_records() -> Records:
    """All records of the rows that there are."""
    runs = ((row, seed) for group in GROUPS for row in group.rows for seed in row.seeds)
    return {(row.name, seed): record for row, seed in runs if (record := read_record(row, seed))}


def state_of(record: dict | None) -> str:
    """How far a run has come."""
    if record is None:
        return 'not run yet'
    if record['state'] == 'finished':
        return 'finished'
    if 'iterations' not in record:
        return 'began'
    if record['iterations'] == record['of_iterations']:
        return TRAINED
    return f'iteration {record["iterations"]:,}/{record["of_iterations"]:,}'


def write_page(docs: Path) -> list[Path]:
    """Write the page and its pictures into the folder of the documentation; return their paths."""
    records = read_records()
    written = [docs / 'results.md']
    written[0].write_text(page_text(records), encoding='utf-8')
    for group in GROUPS:
        if curves_of(group, records):
            written.append(docs / picture_of(group))
            written[-1].parent.mkdir(exist_ok=True)
            draw(group, records).savefig(written[-1], dpi=110)
    return written


def page_text(records: Records) -> str:
    """The page."""
    machines = sorted({record['hardware'] for record in records.values()})
    archives = '\n'.join(
        f'|`{data.archive}`|{data.title}: {data.folder and f"`{data.folder}` with "}{data.layout}|{data.source}|'
        for data in DATA.values()
    )
    parts = [INTRODUCTION.format(archives=archives, machines='; '.join(machines) or 'no machine yet')]
    return '\n'.join(parts + [section(group, records) for group in GROUPS])


def section(group: Group, records: Records) -> str:
    """A heading with the table, curves and claim of a group."""
    runs = [run for row in group.rows for seed in row.seeds if (run := records.get((row.name, seed)))]
    lines = [f'## {group.title}', '', group.text, '', f'`{group.name}`: {costs(runs) if runs else "not run yet."}']
    if runs:
        metrics = [name for name in group.metrics if any(values(row, name, records) for row in group.rows)]
        table = [('model', *(group.metrics[name] for name in metrics), 'state')]
        table += [cells(row, metrics, records) for row in group.rows]
        if all(state == 'finished' for *_, state in table[1:]):
            table = [row[:-1] for row in table]
        if len(metrics) > 6:
            table = list(zip(*table))
        table.insert(1, ['---'] * len(table[0]))
        lines += ['', *(f'|{"|".join(row)}|' for row in table)]
        if curves_of(group, records):
            label = next(iter(group.metrics.values()))
            lines += ['', f'![{label}]({picture_of(group)})']
    if group.claim:
        lines += ['', f'Claim: {group.claim}', '', '|difference|in points|seen|', '|---|---|---|']
        lines += [f'|{"|".join(seen(difference, group, records))}|' for difference in group.differences]
    return '\n'.join([*lines, ''])


def costs(runs: list[dict]) -> str:
    """How many images and processor hours a run took, from the least to the most."""
    images = [run.get('images_seen', 0) for run in runs]
    # A run in progress has 0 hours until its first tool has ended.
    hours = [run['processor_hours'] for run in runs if run['processor_hours']] or [0]
    texts = [f'{min(images):,}', f'{max(images):,}'], [f'{min(hours):.2f}', f'{max(hours):.2f}']
    images, hours = ('-'.join(dict.fromkeys(text)) for text in texts)
    return f'{images} images, {hours} hours a run.'


def cells(row: Row, metrics: list[str], records: Records) -> list[str]:
    """The cells of a row of the table."""
    states = [state_of(records.get((row.name, seed))) for seed in row.seeds]
    different = list(dict.fromkeys(states))
    number = f'of {len(states)} seeds'
    return [
        row.model,
        *(with_range(values(row, name, records).values()) for name in metrics),
        '; '.join(f'{states.count(each)} {number} {each}' if len(different) > 1 else each for each in different),
    ]


def factor_of(metric: str) -> int:
    """What makes a metric percent: mmdet's AP is a fraction."""
    return 100 if metric.startswith('coco/') else 1


def values(row: Row, metric: str, records: Records) -> dict[int, float]:
    """A metric of a row by seed, of the runs that were tested, in percent."""
    found = {seed: (records.get((row.name, seed)) or {}).get('metrics', {}).get(metric) for seed in row.seeds}
    return {seed: factor_of(metric) * value for seed, value in found.items() if value is not None}


def with_range(numbers: Iterable[float], sign: str = '') -> str:
    """The mean of numbers, and the lowest and the highest where there are several."""
    numbers = list(numbers)
    if not numbers:
        return ''
    # Counts are whole, and so may their mean be.
    text, *of_range = (
        f'{number:{sign}d}' if isinstance(number, int) else f'{number:{sign}.1f}'
        for number in (mean(numbers), min(numbers), max(numbers))
    )
    return text + (f' ({(" to " if sign else "-").join(of_range)})' if len(numbers) > 1 else '')


def seen(difference: Difference, group: Group, records: Records) -> tuple[str, str, str]:
    """What was compared for a claim, the difference, and whether it is as claimed."""
    rows = {row.name: row for row in group.rows}
    first, second = rows[difference.first], rows[difference.second]
    of_first = values(first, difference.metric, records)
    of_second = values(second, difference.other_metric or difference.metric, records)
    pairs = [of_first[seed] - of_second[seed] for seed in first.seeds if seed in of_first and seed in of_second]
    if not pairs:
        return difference.what, '', 'not measured yet'
    verdict = 'varies over seeds'
    if len(pairs) < len(first.seeds):
        verdict = f'from {len(pairs)} of {len(first.seeds)} seeds'
    elif all(pair > 0 for pair in pairs):
        verdict = 'yes'
    elif all(pair <= 0 for pair in pairs):
        verdict = 'no'
    return difference.what, with_range(pairs, '+'), verdict


def picture_of(group: Group) -> str:
    """Where the curves of a group are drawn, from the page."""
    return f'results/{group.name}.png'


def curves_of(group: Group, records: Records) -> dict[Row, list[list[tuple[int, float]]]]:
    """The curves of a group by row, one for each seed."""
    curves = {
        row: [run['curve'] for seed in row.seeds if (run := records.get((row.name, seed))) and run.get('curve')]
        for row in group.rows
    }
    return {row: of_row for row, of_row in curves.items() if of_row}


def draw(group: Group, records: Records) -> Figure:
    """Draw the curves of a group, a colour for each row and a line for each seed."""
    figure = Figure(figsize=(7, 4), layout='constrained')
    axis = figure.subplots()
    metric, label = next(iter(group.metrics.items()))
    for index, (row, curves) in enumerate(curves_of(group, records).items()):
        style = dict(color=f'C{index % 10}', marker='.', linewidth=1, linestyle='-' if index < 10 else '--')
        for number, curve in enumerate(curves):
            steps, heights = zip(*curve)
            heights = [factor_of(metric) * height for height in heights]
            axis.plot(steps, heights, label=None if number else row.model, **style)
    axis.set(xlabel='iterations', ylabel=f'{label} on the validation images, %')
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)
    return figure
