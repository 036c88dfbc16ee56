"""Formats that are not read: each is recognised by what its files hold, and named with what converts it."""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from ...runtime.inputs import is_hidden

# Files of each type that are looked into, and bytes of each at most.
NUM_FILES, MAX_BYTES = 5, 2**24

FROM_THERE = 'export COCO from there'


def other_format(folder: Path) -> str | None:
    """The name of a format that is not read, and what to do; None if a folder or file is in none that is known."""
    for suffix, recognise in RECOGNISED.items():
        for path in islice(_files(folder, suffix), NUM_FILES):
            found = recognise(path)
            if found:
                return f'{path} is in the format of {found[0]}, which is not read: {found[1]}'
    return None


def _files(folder: Path, suffix: str) -> Iterator[Path]:
    paths = folder.rglob(f'*{suffix}') if folder.is_dir() else [folder] * (folder.suffix == suffix)
    return (path for path in paths if path.is_file() and not is_hidden(Path(path.name)))


def _of_json(path: Path) -> tuple[str, str] | None:
    try:
        document = json.loads(path.read_bytes()) if path.stat().st_size <= MAX_BYTES else None
    except (ValueError, RecursionError):
        return None
    first = document[0] if isinstance(document, list) and document else document
    if not isinstance(first, dict):
        return None
    keys = first.keys()
    if {'shapes', 'imagePath'} <= keys:
        return 'labelme', 'pip install labelme2coco, then labelme2coco FOLDER'
    if {'items', 'categories'} <= keys:
        return 'Datumaro', 'datum convert -if datumaro -i FOLDER -f coco -o OUT'
    if {'imgHeight', 'imgWidth', 'objects'} <= keys:
        return 'Cityscapes', 'datum convert -if cityscapes -i FOLDER -f coco -o OUT'
    if {'objects', 'size'} <= keys:
        return 'Supervisely', FROM_THERE
    regions = first.get('_via_img_metadata', first)
    if isinstance(regions, dict) and any(isinstance(each, dict) and 'regions' in each for each in regions.values()):
        return 'VIA (VGG Image Annotator)', FROM_THERE
    if 'data_row' in keys or 'Labeled Data' in keys:
        return 'Labelbox', FROM_THERE
    return None


def _of_lines(path: Path) -> tuple[str, str] | None:
    """Of a file with a JSON document a line, its first one."""
    try:
        with path.open(encoding='utf-8') as file:
            is_labelbox = 'data_row' in json.loads(file.readline(MAX_BYTES))
    except (ValueError, RecursionError, TypeError):
        return None
    return ('Labelbox', FROM_THERE) if is_labelbox else None


def _of_xml(path: Path) -> tuple[str, str] | None:
    with path.open('rb') as file:
        begin = file.read(1000)
    if b'<annotations' in begin:
        return 'CVAT', f'{FROM_THERE}, or datum convert -if cvat -i FOLDER -f coco -o OUT'
    return None


def _of_csv(path: Path) -> tuple[str, str] | None:
    with path.open('rb') as file:
        columns = file.readline(1000).strip().split(b',')
    if {b'ImageID', b'LabelName'} <= set(columns):
        return 'Open Images', 'datum convert -if open_images -i FOLDER -f coco -o OUT'
    return None


def _of_text(path: Path) -> tuple[str, str] | None:
    with path.open('rb') as file:
        words = file.readline(1000).split()
    if len(words) in (15, 16) and words[0].isalpha():
        return 'KITTI', 'datum convert -if kitti -i FOLDER -f coco -o OUT'
    return None


RECOGNISED: dict[str, Callable[[Path], tuple[str, str] | None]] = {
    '.json': _of_json,
    '.ndjson': _of_lines,
    '.xml': _of_xml,
    '.csv': _of_csv,
    '.txt': _of_text,
}
