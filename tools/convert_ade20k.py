#!/usr/bin/env python
"""Convert ADE20K's instances to COCO's format, for instance and panoptic segmentation.

Unpack ADEChallengeData2016.zip, and annotations_instance.tar in its folder. The tool writes there
ade20k_instance_{train,val}.json, ade20k_panoptic_{train,val}.json and the panoptic PNGs.
"""

import argparse
from functools import partial
from pathlib import Path

import bioattn_mm.cli.threads_and_memory  # noqa: F401

from rich.progress import track

from bioattn_mm.cli.command_line import ToolParser, run_tool
from bioattn_mm.data.ade20k import SPLITS, convert_split, output_files
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
    written = []
    for split in SPLITS:
        written += convert_split(root, split, partial(track, description=split))
    print(*written, sep='  ')


if __name__ == '__main__':
    main()
