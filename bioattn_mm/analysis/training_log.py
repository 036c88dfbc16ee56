"""What mmengine logged in a training: curves of losses, learning rates and metrics over the iterations."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from ..errors import InputError

SCALARS = Path('vis_data', 'scalars.json')
# Logged in training and validation, but about the machine.
NO_METRICS = ('time', 'data_time', 'memory')
# Where a line belongs, not what was measured.
PLACES = ('step', 'iter', 'epoch')

Curve = dict[int, float]  # values by iteration, which rises


@dataclass
class TrainingLog:
    """The curves of a training, joined from all pieces of it.

    Attributes:
        files: The files that were read, the oldest first.
        training: Curves of what was logged while training, by key, such as 'loss' and 'lr'.
        validation: Curves of what was logged after validations, such as 'mIoU'. A key that the training logs too has
            'val/' before it.
        epochs: Epoch of the iterations at which an epoch-based run logged something while training.
    """

    files: list[Path]
    training: dict[str, Curve] = field(default_factory=dict)
    validation: dict[str, Curve] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str) -> 'TrainingLog':
        """Read a run.

        Each start of a training writes a file of its own. Where a resumed training, or another start in the same work
        dir, repeats iterations of an earlier file, the later values count.

        A validation of an epoch-based run is logged with its epoch: it is placed at the last iteration that was
        logged before it.

        Args:
            path: Work dir of a training, one of the folders in it that are named by time, a scalars.json, or the
                steps.jsonl of `StepLogHook`, which has every step.

        Raises:
            InputError: There is no log, a file cannot be read, or nothing was logged.
        """
        log = cls(find_scalars(path))
        for file in log.files:
            log._append(read_lines(file))
        if not log.training and not log.validation:
            files = ', '.join(map(str, log.files))
            raise InputError(f'nothing was logged in {files}: the training ended before its first log line')
        for key in [key for key in log.validation if key in log.training]:
            log.validation[f'val/{key}'] = log.validation.pop(key)
        return log

    @property
    def curves(self) -> dict[str, Curve]:
        """The curves of training and validation by key."""
        return self.training | self.validation

    def _append(self, lines: list[dict]) -> None:
        """Add the lines of a file, in place of what is known of their iterations and later ones."""
        start = next((line['iter'] for line in lines if 'iter' in line), None)
        if start is not None:
            for curve in (*self.training.values(), *self.validation.values(), self.epochs):
                for iteration in [iteration for iteration in curve if iteration >= start]:
                    del curve[iteration]
        # A resumed run may validate before its first line.
        iteration = max((iteration for curve in self.training.values() for iteration in curve), default=0)
        for line in lines:
            if 'iter' in line:
                curves, iteration = self.training, line['iter']
                if 'epoch' in line:
                    self.epochs[iteration] = line['epoch']
            else:
                # A line without 'iter' is of a validation. A step below the iteration counts epochs.
                curves, iteration = self.validation, max(line.get('step', 0), iteration)
            for key, value in line.items():
                is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
                about_machine = curves is self.validation and key.split('/')[-1] in NO_METRICS
                if is_number and key not in PLACES and not about_machine:
                    curves.setdefault(key, {})[iteration] = float(value)


def find_scalars(path: str) -> list[Path]:
    """The files of a run, the oldest first.

    Args:
        path: As in `TrainingLog.read`.

    Raises:
        InputError: There are none.
    """
    place = Path(path)
    if place.is_file():
        return [place]
    for folder in (place, place.parent):  # of a folder named by time, or its vis_data
        if (folder / SCALARS).is_file() and place in (folder, folder / SCALARS.parent):
            return [folder / SCALARS]
    files = sorted(place.glob(f'*/{SCALARS}'))  # folders are named by time
    if not files:
        found = 'no such file or folder' if not place.exists() else f'it holds no */{SCALARS}'
        raise InputError(f'no log of a training at {path} ({found}): name the work dir of a training')
    return files


def read_lines(file: Path) -> list[dict]:
    """The lines of a scalars.json; a last line that was cut off, because the run was killed, is left out.

    Raises:
        InputError: The file is something else.
    """
    try:
        text = file.read_text(encoding='utf-8')
    except UnicodeDecodeError as error:
        raise InputError(f'{file} is no log of mmengine: not a text file') from error
    lines = []
    for number, row in enumerate(text.splitlines(), 1):
        try:
            line = json.loads(row) if row.strip() else None
        except (ValueError, RecursionError) as error:
            if number > 1 and number == len(text.splitlines()) and not text.endswith('\n'):
                break
            raise InputError(f'{file} is no log of mmengine: line {number} is no JSON') from error
        if line is None:
            continue
        places = [line.get(key, 0) for key in PLACES] if isinstance(line, dict) else [None]
        if not all(isinstance(place, int) for place in places) or not {'step', 'iter'} & set(line):
            raise InputError(f'{file} is no log of mmengine: line {number} has no iteration or step')
        lines.append(line)
    return lines


def smooth(values: Iterable[float], weight: float) -> list[float]:
    """Exponential moving average without a bias to the start; NaN and infinity leave it as it is.

    Args:
        values: The values.
        weight: Weight of the past, 0 (no smoothing) up to but not 1.
    """
    averages, total, norm = [], 0.0, 0.0
    for value in values:
        if math.isfinite(value):
            total = weight * total + (1 - weight) * value
            norm = weight * norm + 1 - weight
        averages.append(total / norm if norm else math.nan)
    return averages


def run_names(paths: Sequence[str]) -> list[str]:
    """Names for runs: as many last parts of their paths as tell them apart.

    Raises:
        InputError: Two paths are the same.
    """
    parts = []
    for path in paths:
        place = Path(path).resolve()
        # Neither file nor folder name says anything, if they are those that mmengine gives.
        place = place.parent if place.name in (SCALARS.name, 'steps.jsonl') else place
        parts.append((place.parent if place.name == SCALARS.parent.name else place).parts)
    for one, other in pairwise(sorted(parts)):
        if one == other:
            raise InputError(f'{Path(*one)} is named twice')
    names = []
    for own in parts:
        others = [other for other in parts if other is not own]
        length = 1
        while any(other[-length:] == own[-length:] for other in others):
            length += 1
        names.append('/'.join(own[-length:]))
    return names
