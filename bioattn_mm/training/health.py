"""The health of a training, from the lines that `StepLogHook` writes: speed, stalls, restarts, losses."""

import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

# A step is a stall if it takes this many times the median.
STALL = 3
# Stalls and steps with a loss that is not finite: so many are named.
NAMED = 5


def read_lines(path: Path) -> Iterator[dict]:
    """The lines of a file of `StepLogHook`; one that was cut off or damaged, as the run was killed, is left out."""
    with path.open(encoding='utf-8', errors='replace') as file:
        for row in file:
            try:
                line = json.loads(row)
            except (ValueError, RecursionError):
                continue
            if isinstance(line, dict) and isinstance(line.get('step'), int):
                yield line


def is_step(line: dict) -> bool:
    """Whether a line is of a training step; others are of starts, validations and summaries."""
    return 'iter' in line


def health(lines: Iterable[dict]) -> dict:
    """What a person on duty wants to know of a training, over all of its starts.

    The first step of each start, in which workers start and algorithms are chosen, is left out of all times.

    Args:
        lines: Lines of `StepLogHook`, in order.

    Returns:
        Entries that JSON can hold; None where nothing is known:

        - steps, starts, resumed: numbers of steps, of starts, and of those starts that went on from a checkpoint
        - step_time: median of a whole step in seconds; images_per_second: median
        - data_share, hook_share: parts of the time in which a step waited for data, and in which hooks ran after it
        - stalls: `count`, `seconds` beyond the median, and the `longest`, each with its step, its time in seconds and
          the part of it that grew most: 'data', 'hooks' or 'computing', which includes waiting for other processes
        - nonfinite: `count` of steps with a loss that is NaN or infinite, and the `first` of them
        - peak_memory: MiB
    """
    steps, timed, starts, is_first = [], [], [], True
    for line in lines:
        if 'start' in line:
            starts.append(line['start'])
            is_first = True
        elif is_step(line):
            steps.append(line)
            timed += [] if is_first else [line]
            is_first = False
    timed = timed or steps
    whole, data, hooks = (np.array([step[key] for step in timed]) for key in ('time', 'data_time', 'hook_time'))
    speeds = [step['images_per_second'] for step in timed if step.get('images_per_second')]
    bad = [step['step'] for step in steps if any('loss' in key and step[key] is None for key in step)]
    return dict(
        steps=len(steps),
        starts=len(starts),
        resumed=sum(start['resumed'] for start in starts),
        step_time=float(np.median(whole)) if timed else None,
        images_per_second=float(np.median(speeds)) if speeds else None,
        data_share=float(data.sum() / whole.sum()) if timed else None,
        hook_share=float(hooks.sum() / whole.sum()) if timed else None,
        stalls=_stalls([step['step'] for step in timed], whole, data, hooks),
        nonfinite=dict(count=len(bad), first=bad[:NAMED]),
        peak_memory=max((step['memory'] for step in steps), default=None),
    )


def _stalls(steps: list[int], whole: np.ndarray, data: np.ndarray, hooks: np.ndarray) -> dict:
    if not steps:
        return dict(count=0, seconds=0.0, longest=[])
    surplus = {
        part: times - np.median(times)
        for part, times in dict(data=data, hooks=hooks, computing=whole - data - hooks).items()
    }
    found = np.flatnonzero(whole > STALL * np.median(whole))
    longest = [
        dict(step=steps[i], seconds=round(float(whole[i]), 3), part=max(surplus, key=lambda part: surplus[part][i]))
        for i in sorted(found, key=lambda i: -whole[i])[:NAMED]
    ]
    lost = float((whole[found] - np.median(whole)).sum())
    return dict(count=len(found), seconds=round(lost, 3), longest=longest)


def health_table(summary: dict) -> str:
    """What `health` returns, with `ended`, the reason of the end, as a table of text."""
    resumed = f', {summary["resumed"]} of them from a checkpoint' if summary['resumed'] else ''
    rows = {'ended': f'{summary["ended"]}, {summary["steps"]} steps', 'starts': f'{summary["starts"]}{resumed}'}
    if summary['steps']:
        speed = summary['images_per_second']
        rows['speed'] = f'{summary["step_time"]:.3g} s a step' + (f', {speed:.3g} images a second' if speed else '')
        rows['waiting for data'] = f'{summary["data_share"]:.1%} of the time'
        rows['hooks'] = f'{summary["hook_share"]:.1%} of the time: logs, checkpoints'
    found, bad = summary['stalls'], summary['nonfinite']
    named = ', '.join(f'step {one["step"]} ({one["seconds"]:.3g} s, {one["part"]})' for one in found['longest'])
    rows['stalls'] = f'{found["count"]}' + (f', {found["seconds"]:.3g} s lost: {named}' if named else '')
    rows['losses not finite'] = f'{bad["count"]}' + (f', first at step {bad["first"][0]}' if bad['count'] else '')
    if summary['peak_memory'] is not None:
        rows['peak memory'] = f'{summary["peak_memory"]} MiB'
    table = Table(title='health of the run', title_justify='left', show_header=False)
    for row in rows.items():
        table.add_row(*row)
    return table_text(table)


def table_text(table: Table) -> str:
    text = io.StringIO()
    Console(file=text, width=140, markup=False).print(table)  # reasons may have brackets
    return text.getvalue().rstrip()
