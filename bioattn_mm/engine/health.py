"""The health of a training, from the lines that `StepLogHook` writes: speed, stalls, ranks, restarts, losses.

mmengine logs means over some steps, in which a stall, a slow rank and a skipped step are not to be seen. Who watches
over a long run reads them in the summary at its end.
"""

import io
import json
import math
from collections import Counter
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
        - step_time: median of a whole step in seconds; images_per_second: median over all processes
        - data_share, hook_share: parts of the time in which a step waited for data, and in which hooks ran after it
        - stalls: `count`, `seconds` beyond the median, and the `longest`, each with its step, its time in seconds and
          the part of it that grew most: 'data', 'hooks' or 'computing', which includes waiting for other processes
        - slowest_rank: the `rank` that most often was, the part of the measurements (`share`), and by how many
          seconds a step it was behind the fastest one then (`behind`)
        - nonfinite: `count` of steps with a loss that is NaN or infinite, and the `first` of them
        - skipped_steps: steps that the loss scaler left out, because gradients overflowed
        - peak_memory: MiB of the process that took most
    """
    steps, warm, starts = [], [], []
    after_start = True
    for line in lines:
        if 'start' in line:
            starts.append(line['start'])
            after_start = True
        elif is_step(line):
            steps.append(line)
            warm.append(not after_start)
            after_start = False
    timed = [step for step, is_warm in zip(steps, warm) if is_warm] or steps
    times = {part: np.array([step[key] for step in timed]) for part, key in PARTS.items()}
    times['computing'] = times['whole'] - times['data'] - times['hooks']
    medians = {part: float(np.median(values)) if timed else None for part, values in times.items()}
    total = float(times['whole'].sum())
    speeds = [step['images_per_second'] for step in timed if step.get('images_per_second')]
    bad = [step['step'] for step in steps if any('loss' in key and step[key] is None for key in step)]
    memory = [step[key] for step in steps for key in ('memory', 'max_memory') if key in step]
    return dict(
        steps=len(steps),
        starts=len(starts),
        resumed=sum(start['resumed'] for start in starts),
        step_time=medians['whole'],
        images_per_second=float(np.median(speeds)) if speeds else None,
        data_share=float(times['data'].sum()) / total if total else None,
        hook_share=float(times['hooks'].sum()) / total if total else None,
        stalls=stalls([step['step'] for step in timed], times, medians),
        slowest_rank=slowest_rank(steps),
        nonfinite=dict(count=len(bad), first=bad[:NAMED]),
        skipped_steps=sum(step.get('skipped_step', False) for step in steps),
        peak_memory=max(memory, default=None),
    )


# Parts of a step's time, and the keys of their lines.
PARTS = dict(whole='time', data='data_time', hooks='hook_time')


def stalls(steps: list[int], times: dict[str, np.ndarray], medians: dict[str, float]) -> dict:
    """Steps that took several times the median, and the part of each that grew most; see `health`."""
    found = []
    for index in np.flatnonzero(times['whole'] > STALL * medians['whole']) if steps else ():
        excess = {part: times[part][index] - medians[part] for part in ('data', 'hooks', 'computing')}
        seconds = round(float(times['whole'][index]), 3)
        found.append(dict(step=steps[index], seconds=seconds, part=max(excess, key=excess.get)))
    longest = sorted(found, key=lambda stall: -stall['seconds'])[:NAMED]
    lost = sum(stall['seconds'] - medians['whole'] for stall in found)
    return dict(count=len(found), seconds=round(lost, 3), longest=longest)


def slowest_rank(steps: list[dict]) -> dict | None:
    """The rank that the others waited for most often; see `health`."""
    measured = [step for step in steps if 'rank_skew' in step]
    if not measured:
        return None
    rank, times = Counter(step['slowest_rank'] for step in measured).most_common(1)[0]
    behind = [step['rank_skew'] for step in measured if step['slowest_rank'] == rank]
    return dict(rank=rank, share=times / len(measured), behind=math.fsum(behind) / times)


def health_table(summary: dict) -> str:
    """A summary as a table of text.

    Args:
        summary: What `health` returns, with `ended`, the reason of the end, and `skipped_samples`, which may be None.
    """
    table = Table(title='health of the run', title_justify='left', show_header=False)
    for name, text in _rows(summary):
        table.add_row(name, text)
    return table_text(table)


def _rows(summary: dict) -> Iterator[tuple[str, str]]:
    yield 'ended', f'{summary["ended"]}, {summary["steps"]} steps'
    resumed = f', {summary["resumed"]} of them from a checkpoint' if summary['resumed'] else ''
    yield 'starts', f'{summary["starts"]}{resumed}'
    if summary['steps']:
        speed = summary['images_per_second']
        yield 'speed', f'{summary["step_time"]:.3g} s a step' + (f', {speed:.3g} images a second' if speed else '')
        yield 'waiting for data', f'{summary["data_share"]:.1%} of the time'
        yield 'hooks', f'{summary["hook_share"]:.1%} of the time: logs, checkpoints'
    slowest = summary['slowest_rank']
    if slowest:
        part = slowest['behind'] / summary['step_time']
        often = f'{slowest["share"]:.0%} of the measurements'
        yield 'slowest rank', f'{slowest["rank"]}, by {slowest["behind"]:.3g} s a step ({part:.1%}), in {often}'
    found = summary['stalls']
    named = ', '.join(f'step {one["step"]} ({one["seconds"]:.3g} s, {one["part"]})' for one in found['longest'])
    yield 'stalls', f'{found["count"]}' + (f', {found["seconds"]:.3g} s lost: {named}' if named else '')
    bad = summary['nonfinite']
    yield 'losses not finite', f'{bad["count"]}' + (f', first at step {bad["first"][0]}' if bad['count'] else '')
    if summary['skipped_steps']:
        yield 'skipped by loss scale', f'{summary["skipped_steps"]} steps'
    if summary['skipped_samples'] is not None:
        yield 'bad samples skipped', f'{summary["skipped_samples"]}'
    if summary['peak_memory'] is not None:
        yield 'peak memory', f'{summary["peak_memory"]} MiB'


def table_text(table: Table) -> str:
    """A table of rich as text, for a log."""
    text = io.StringIO()
    Console(file=text, width=140).print(table)
    return text.getvalue().rstrip()
