#!/usr/bin/env python
"""Make annotations in COCO's format of ADE20K's instances, for instance and panoptic segmentation.

From the folder of ADEChallengeData2016.zip with annotations_instance.tar unpacked in it, writes beside them
ade20k_instance_{train,val}.json, ade20k_panoptic_{train,val}.json and the PNGs of the latter.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import bioattn_mm.process_settings  # noqa: F401

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.datasets.ade20k import SPLITS, convert_split, output_files
from bioattn_mm.datasets.parallel import run_all
from bioattn_mm.errors import InputError


def parse_args() -> argparse.Namespace:
    parser = ToolParser(__doc__, 'convert_ade20k.py data/ade/ADEChallengeData2016')
    parser.add_argument('folder', metavar='DIR', help='the folder ADEChallengeData2016')
    return parser.parse_args()


@run_tool
def main() -> None:
    root = Path(parse_args().folder)
    for path in (path for split in SPLITS for path in output_files(root, split)):
        if path.exists() or path.with_suffix('').exists():
            raise InputError(f'{path} is there already, or its PNGs: remove or rename them to convert again')
    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    written = []
    with Progress(*columns) as progress:
        for split in SPLITS:
            written += convert_split(root, split, partial(run_shown, progress, progress.add_task(split)))
    print(*written, sep='  ')


def run_shown(progress: Progress, bar: TaskID, function: Callable, count: int) -> list:
    """`run_all` with a bar."""
    progress.update(bar, total=count)
    return run_all(function, count, partial(progress.advance, bar))


if __name__ == '__main__':
    main()
