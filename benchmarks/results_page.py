"""docs/results.md: what was measured on real data, made from the JSON that `results.py` has written."""

from collections.abc import Iterable
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure
from results_rows import DATA, GROUPS, Difference, Group, Row

from bioattn_mm.files import read_json

RECORDS = Path(__file__).resolve().parent / 'results'
TRAINED = 'trained, not tested'
# All records by row and seed.
Records = dict[tuple[str, int], dict]

INTRODUCTION = """\
# Results on real data

Models trained from random weights on data sets that fit on a small machine. This page and its pictures are made by
`python benchmarks/results.py --table` from the records in `benchmarks/results`, one file a run.
A run that has not finished says how far it came, and goes on with the command that began it, which stands above its
table; one row alone is named by its first column:

```bash
python benchmarks/results.py --list
python benchmarks/results.py cifar10-convit-005 --data archives
python benchmarks/results.py --table
```

What a run calls is in its record: `bioattn train` with all options. `archives` is a folder with what is needed of

{archives}

The sets are small and the trainings short: they compare models under the same conditions, and say little of what a
model reaches when it is trained to the end. Figures are means over seeds, with the lowest and the highest in brackets
where there are several. Processor hours are of the training and the tests of a run; the clock's, which other work on
a machine makes longer, are in the records. They were measured on
{machines}.
"""


def record_path(row: str, seed: int) -> Path:
    """The file of a run."""
    return RECORDS / f'{row}-seed{seed}.json'


def read_record(row: str, seed: int) -> dict | None:
    """What was measured in a run; None if it has not begun."""
    path = record_path(row, seed)
    return read_json(path, 'remove it, and run the row again') if path.exists() else None


def read_records() -> Records:
    """All records of the rows that there are."""
    runs = ((row.name, seed) for group in GROUPS for row in group.rows for seed in row.seeds)
    return {run: record for run in runs if (record := read_record(*run)) is not None}


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
    return f'came to iteration {record["iterations"]:,} of {record["of_iterations"]:,}'


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
        f'- `{data.archive}`, {data.title}: {f"`{data.folder}` with " if data.folder else ""}{data.layout}; from '
        f'{data.source}'
        for data in DATA.values()
    )
    parts = [INTRODUCTION.format(archives=archives, machines='; '.join(machines) or 'no machine yet')]
    parts += [section(group, records) for group in GROUPS]
    return '\n'.join(parts)


def section(group: Group, records: Records) -> str:
    """A heading with the table, curves and claim of a group."""
    command = f'python benchmarks/results.py {group.name} --data archives'
    lines = [f'## {group.title}', '', group.text, '', f'`{command}`', '']
    if any((row.name, seed) in records for row in group.rows for seed in row.seeds):
        metrics = [name for name in group.metrics if any(values(row, name, records) for row in group.rows)]
        labels = [group.metrics[name] for name in metrics]
        head = ('row', 'model', 'config', 'images a run', 'processor hours', *labels, 'state')
        lines += [f'| {" | ".join(head)} |', '| --- ' * len(head) + '|']
        lines += [f'| {" | ".join(cells(row, metrics, records))} |' for row in group.rows]
        if curves_of(group, records):
            label = next(iter(group.metrics.values()))
            lines += ['', f'![{label} on the validation images over the iterations]({picture_of(group)})']
    else:
        lines += [f'Not run yet: {", ".join(f"`{row.name}`" for row in group.rows)}.']
    if group.claim:
        lines += ['', f"Claim: {group.claim} Seen, in points of each seed's difference:", '']
        lines += [f'- {seen(difference, group, records)}' for difference in group.differences]
    return '\n'.join([*lines, ''])


def cells(row: Row, metrics: list[str], records: Records) -> list[str]:
    """The cells of a row of the table."""
    runs = [records.get((row.name, seed)) for seed in row.seeds]
    states = list(map(state_of, runs))
    begun = [run for run in runs if run and 'images_seen' in run]
    # A run in progress has 0 hours until its first tool has ended, which would lower the mean.
    hours = [run['processor_hours'] for run in begun if run['processor_hours']]
    different = list(dict.fromkeys(states))
    state = '; '.join(
        (f'{states.count(each)} of {len(states)} seeds ' if len(different) > 1 else '') + each for each in different
    )
    return [
        f'`{row.name}`',
        row.model,
        f'`{config_of(row)}`',
        f'{max(run["images_seen"] for run in begun):,}' if begun else '',
        f'{mean(hours):.2f}' if hours else '',
        *(with_range(values(row, name, records).values()) for name in metrics),
        state,
    ]


def config_of(row: Row) -> str:
    """The config of a row, with the backbone that it is given."""
    given = row.options[: row.options.index('--backbone') + 2] if '--backbone' in row.options else ()
    return ' '.join((row.config, *given))


def values(row: Row, metric: str, records: Records) -> dict[int, float]:
    """A metric of a row by seed, of the runs that were tested, in percent."""
    found = {seed: (records.get((row.name, seed)) or {}).get('metrics', {}).get(metric) for seed in row.seeds}
    # mmdet's AP is a fraction.
    factor = 100 if metric.startswith('coco/') else 1
    return {seed: factor * value for seed, value in found.items() if value is not None}


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
    return text + (' ({} to {})'.format(*of_range) if len(numbers) > 1 else '')


def seen(difference: Difference, group: Group, records: Records) -> str:
    """What was seen of a claim."""
    rows = {row.name: row for row in group.rows}
    first, second = rows[difference.first], rows[difference.second]
    of_first = values(first, difference.metric, records)
    of_second = values(second, difference.other_metric or difference.metric, records)
    pairs = [of_first[seed] - of_second[seed] for seed in first.seeds if seed in of_first and seed in of_second]
    if not pairs:
        return f'{difference.what}: not measured yet'
    number = len(first.seeds)
    if len(pairs) < number:
        verdict = f'from {len(pairs)} of {number} seeds, which says nothing yet'
    elif all(pair > 0 for pair in pairs):
        verdict = 'as claimed'
    elif all(pair <= 0 for pair in pairs):
        verdict = 'does not show'
    else:
        verdict = 'differs from seed to seed'
    return f'{difference.what}: {with_range(pairs, "+")}, {verdict}'


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
    factor = 100 if metric.startswith('coco/') else 1
    for index, (row, curves) in enumerate(curves_of(group, records).items()):
        for number, curve in enumerate(curves):
            steps, heights = zip(*curve)
            axis.plot(
                steps, [factor * height for height in heights], color=f'C{index % 10}', marker='.', linewidth=1,
                linestyle='-' if index < 10 else '--', label=None if number else row.model,
            )  # fmt: skip
    axis.set(xlabel='iterations', ylabel=f'{label} on the validation images, %')
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)
    return figure
