"""One image that shows several."""

from pathlib import Path

import cv2
import numpy as np

SEPARATOR = 6


def write_contact_sheet(paths: list[Path], out_file: Path, rows: int = 3, columns: int = 2) -> None:
    """Tile evenly spaced ones of the images, scaled to one height, into a PNG or JPEG of `rows` x `columns`."""
    chosen = [paths[i] for i in np.linspace(0, len(paths) - 1, min(rows * columns, len(paths))).astype(int)]
    images = [cv2.imread(str(path)) for path in chosen]
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
    cv2.imwrite(str(out_file), sheet[:-SEPARATOR, :-SEPARATOR])
