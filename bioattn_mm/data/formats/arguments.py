"""What the command line says of own data, and the folders that it may name."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError
from ..checks import Problem


@dataclass(frozen=True)
class DataArguments:
    """What the command line says of own data (see `ToolParser.add_data`)."""

    data: str | None = None  # folder, JSON file of COCO's format or YAML file of YOLO's
    train_data: str | None = None  # the training images alone, in place of those of `data`
    val_data: str | None = None  # the validation images alone
    reduce_zero_label: bool = False  # 0 in a label map does not count, and class i is i + 1
    problems: list[Problem] | None = None  # gets what is wrong that would otherwise end the reading
    as_rgb: bool = False  # images are read as RGB in 8 bits, whatever channels and depth their files have

    @property
    def name(self) -> str:
        """Short name of the data, for a work dir: that of the folder, or of a file and its folder."""
        path = Path(self.train_data or self.data or self.val_data).resolve()
        return path.name if path.is_dir() else f'{path.parent.name}_{path.stem}'


def data_arguments(args: argparse.Namespace, problems: list[Problem] | None = None) -> DataArguments | None:
    """The arguments of `ToolParser.add_data`; None if there are none. `problems`: see `DataArguments`."""
    if args.data or args.train_data or args.val_data:
        return DataArguments(args.data, args.train_data, args.val_data, args.reduce_zero_label, problems, args.as_rgb)
    for option in ('reduce_zero_label', 'as_rgb'):
        if getattr(args, option):
            raise InputError(f'--{option.replace("_", "-")} is for own data: name them with --data')
    return None
