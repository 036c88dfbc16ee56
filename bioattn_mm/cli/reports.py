"""What the tools write for people: tables, numbers and drawings."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import cv2
import matplotlib
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Column, Table

from ..errors import InputError
from ..files import write_json

# Names of classes and files are no formulas, whatever dollar signs they have. Nor are the numbers of logarithmic
# axes, which need another format than matplotlib's.
matplotlib.rcParams['text.parse_math'] = False
SEPARATOR = 6  # pixels between the images of a contact sheet


class Report:
    """The files that a tool writes into the folder `--out`.

    The folder is made with the first file: a tool that ends with an error before leaves nothing behind.

    Args:
        folder: The folder.
        *files: Names of the files.
        overwrite: Whether the files may exist, because an earlier call of the tool is gone on with.

    Raises:
        InputError: One of the files exists and must not be overwritten.
    """

    def __init__(self, folder: str, *files: str, overwrite: bool = False) -> None:
        self.folder, self.files = Path(folder), files
        for name in files:
            if not overwrite and (self.folder / name).exists():
                raise InputError(f'{self.folder / name} is there already: name another folder for --out')

    def __str__(self) -> str:
        """The paths of all files."""
        return '  '.join(str(self.folder / name) for name in self.files)

    def path(self, name: str) -> Path:
        """Where to write a file, in a folder that exists."""
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
        """Write a document (see `write_json`)."""
        write_json(self.path(name), document, indent)

    def write_figure(self, name: str, figure: Figure) -> None:
        """Write a drawing."""
        figure.savefig(self.path(name), dpi=120)


def print_table(title: str, columns: Iterable[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; cells that are too wide for the terminal are folded."""
    table = Table(*(Column(column, overflow='fold') for column in columns))
    for row in rows:
        table.add_row(*map(str, row))
    print(title)
    Console().print(table)


def write_contact_sheet(paths: list[Path], out_file: Path, rows: int = 3, columns: int = 2) -> None:
    """Tile images into one of `rows` x `columns` cells, each as large as the largest image.

    Args:
        paths: Files of images, at least one; more than there are cells are sampled evenly.
        out_file: PNG or JPEG to write.
        rows: Number of rows at most.
        columns: Number of columns.
    """
    chosen = [paths[i] for i in np.linspace(0, len(paths) - 1, min(rows * columns, len(paths))).astype(int)]
    # OpenCV crashes at file names that are not in UTF-8.
    images = [cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR) for path in chosen]
    height, width = (max(image.shape[axis] for image in images) for axis in (0, 1))
    cells = []
    for image in images:
        factor = min(height / image.shape[0], width / image.shape[1])
        image = cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)
        cell = np.full((height + SEPARATOR, width + SEPARATOR, 3), 255, np.uint8)
        top, left = (height - image.shape[0]) // 2, (width - image.shape[1]) // 2
        cell[top : top + image.shape[0], left : left + image.shape[1]] = image
        cells.append(cell)
    cells += [np.full_like(cells[0], 255)] * (-len(cells) % columns)
    sheet = np.vstack([np.hstack(cells[i : i + columns]) for i in range(0, len(cells), columns)])
    cv2.imencode(out_file.suffix, sheet[:-SEPARATOR, :-SEPARATOR])[1].tofile(out_file)
