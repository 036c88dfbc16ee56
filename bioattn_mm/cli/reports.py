"""What the tools write for people: tables, numbers and drawings."""

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageOps
from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table

from ..errors import InputError
from ..runtime.files import write_json

# Names of classes and files are no formulas, whatever dollar signs they have.
matplotlib.rcParams['text.parse_math'] = False
SEPARATOR = 6  # pixels between the images of a contact sheet


class Report:
    """The files that a tool writes into the folder `--out`, which is made with the first of them.

    An `InputError` is raised if one is there, and may not be overwritten as that of an earlier call.
    """

    def __init__(self, folder: str, *files: str, overwrite: bool = False) -> None:
        self.folder, self.files = Path(folder), files
        for name in files:
            if not overwrite and (self.folder / name).exists():
                raise InputError(f'{self.folder / name} is there already: name another folder for --out')

    def __str__(self) -> str:
        return '  '.join(str(self.folder / name) for name in self.files)

    def path(self, name: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / name

    def write_csv(self, name: str, rows: list[dict]) -> None:
        """Write rows; the columns are all of their keys, in the order in which they appear."""
        # Names of files may be in another encoding.
        with self.path(name).open('w', newline='', encoding='utf-8', errors='backslashreplace') as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
            writer.writeheader()
            writer.writerows(rows)

    def write_json(self, name: str, document: object, indent: int | None = 1) -> None:
        write_json(self.path(name), document, indent)

    def write_figure(self, name: str, figure: Figure) -> None:
        figure.savefig(self.path(name), dpi=120)


def print_table(title: str, columns: Iterable[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; cells that are too wide for the terminal are folded."""
    table = Table(*(Column(column, overflow='fold') for column in columns))
    for row in rows:
        table.add_row(*map(str, row))
    print(title)
    Console(markup=False).print(table)  # names may have brackets


def progress_of_tests() -> Progress:
    """A progress bar on stdout as it is now: during a test it is redirected to a file."""
    return Progress(console=Console(file=sys.stdout), speed_estimate_period=3600)


def write_contact_sheet(paths: list[Path], out_file: Path, rows: int = 3, columns: int = 2) -> None:
    """Tile images, at least one, into cells as large as the largest; more than there are cells are sampled evenly."""
    chosen = [paths[i] for i in np.linspace(0, len(paths) - 1, min(rows * columns, len(paths))).astype(int)]
    images = [Image.open(path).convert('RGB') for path in chosen]
    width, height = (max(image.size[axis] for image in images) for axis in (0, 1))
    num_rows = -(-len(images) // columns)
    size = columns * (width + SEPARATOR) - SEPARATOR, num_rows * (height + SEPARATOR) - SEPARATOR
    sheet = Image.new('RGB', size, 'white')
    for index, image in enumerate(images):
        row, column = divmod(index, columns)
        cell = ImageOps.pad(image, (width, height), color='white')
        sheet.paste(cell, (column * (width + SEPARATOR), row * (height + SEPARATOR)))
    sheet.save(out_file)
