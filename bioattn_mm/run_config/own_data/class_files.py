"""The files in which own data name their classes and the colours of these."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...datasets.checks import IGNORED
from ...errors import InputError

CLASSES_FILE = 'classes.txt'
PALETTE_FILES = ('palette.txt', 'labelmap.txt', 'label_colors.txt')
# Colours of this name in a palette file are of pixels that do not count.
IGNORED_NAME = 'ignore'

# CVAT's lines: label, colour, parts and actions.
WITH_COLOUR = re.compile(r'(?P<name>[^:]+):(?P<rgb>[0-9, ]+):[^:]*:[^:]*')
WITHOUT_COLOUR = re.compile(r'(?P<name>[^:]+):\s*:[^:]*:[^:]*')

Colours = list[tuple[int, int, int]]


def classes_and_colours(places: Iterable[Path]) -> tuple[tuple[str, ...], Colours | None, Colours | None]:
    """Read the files of classes and colours in the first folder that has them.

    Returns:
        Names; colours of them, or None; these and then those of pixels that do not count, or None.
    """
    for place in dict.fromkeys(places):
        palette_file = next((place / name for name in PALETTE_FILES if (place / name).is_file()), None)
        classes_file = place / CLASSES_FILE
        classes = read_names(classes_file) if classes_file.is_file() else None
        if palette_file is not None:
            return _read_palette(palette_file, classes)
        if classes is not None:
            return classes, None, None
    first = next(iter(places))
    raise InputError(
        f'no names of classes: looked for {CLASSES_FILE}, one name a line, and {PALETTE_FILES[0]}, one R G B NAME a '
        f'line, in {first}'
    )


def classes_named_in(folder: Path) -> tuple[str, ...] | None:
    """The names of the classes in the files of a folder; None without such a file."""
    if not any((folder / name).is_file() for name in (CLASSES_FILE, *PALETTE_FILES)):
        return None
    return classes_and_colours([folder])[0]


def read_names(path: Path) -> tuple[str, ...]:
    """The names in a file that has one a line; a # belongs to a name, as this format has no comments."""
    return _checked([line for line in _lines(path) if line], path)


def is_background(name: str) -> bool:
    """Whether a name is that of no object: labelme writes it `_background_`."""
    return name.lower() in ('background', '_background_')


def _checked(classes: Sequence[str], path: Path) -> tuple[str, ...]:
    if not 1 <= len(classes) <= IGNORED:
        raise InputError(
            f'{path} names {len(classes)} classes: expected 1 to {IGNORED}, as the value {IGNORED} does not count'
        )
    return tuple(classes)


def _read_palette(
    path: Path, classes: Sequence[str] | None
) -> tuple[tuple[str, ...], Colours | None, Colours | None]:
    """Read a palette file.

    Args:
        path: The file.
        classes: Names in the order of their indices, if another file says them: then the lines may lack them, or
            have them in another order.

    Returns:
        As `classes_and_colours`.
    """
    # An entry may stand twice, with the same colour and name.
    lines = list(dict.fromkeys(_colour(line, path) for line in _lines(path) if line and not _is_comment(line)))
    if not any(colour for colour, _ in lines):
        names = [name for _, name in lines if name != IGNORED_NAME]
        return _checked(classes or names, path), None, None
    bare = [name for colour, name in lines if colour is None]
    if bare:
        raise InputError(f'{path} has no colour of {bare[0]!r}, and colours of other classes')
    ignored = [colour for colour, name in lines if name == IGNORED_NAME]
    counted = [(colour, name) for colour, name in lines if name != IGNORED_NAME]
    colours, names = [colour for colour, _ in counted], [name for _, name in counted]
    if len(set(colours + ignored)) < len(lines):
        raise InputError(f'{path} has the same colour twice')
    if classes is None:
        if '' in names:
            raise InputError(
                f'{path} has a colour without a name: expected R G B NAME, or the names in {CLASSES_FILE}'
            )
        classes = names
    elif len(classes) != len(names):
        raise InputError(f'{path} has {len(names)} colours, {CLASSES_FILE} {len(classes)} classes: expected as many')
    elif any(names):
        absent = [name for name in classes if name not in names]
        if absent:
            raise InputError(f'{path} has no colour of {absent[0]!r}, a class of {CLASSES_FILE}')
        colours = [colours[names.index(name)] for name in classes]
    return _checked(classes, path), colours, colours + ignored


def _lines(path: Path) -> list[str]:
    """The lines of a file."""
    try:
        text = path.read_text(encoding='utf-8-sig')
    except UnicodeDecodeError as error:
        raise InputError(f'{path} is no text in UTF-8') from error
    if '\0' in text:
        raise InputError(f'{path} is no text in UTF-8')
    return [line.strip() for line in text.splitlines()]


def _is_comment(line: str) -> bool:
    """Whether a line of a palette file is a comment, as CVAT's first one, and no class whose name begins with #."""
    return line.startswith('#') and not (WITH_COLOUR.fullmatch(line) or WITHOUT_COLOUR.fullmatch(line))


def _colour(line: str, path: Path) -> tuple[tuple[int, int, int] | None, str]:
    """Read `R G B NAME`, with spaces or commas, or CVAT's `NAME:R,G,B::`, in which the colour may lack."""
    match = WITHOUT_COLOUR.fullmatch(line)
    if match:
        return None, match['name'].strip()
    match = WITH_COLOUR.fullmatch(line) or re.fullmatch(
        r'(?P<rgb>[0-9]+[\s,]+[0-9]+[\s,]+[0-9]+)[\s,]*(?P<name>.*)', line
    )
    # int() refuses numbers of thousands of digits.
    rgb = tuple(int(value[-9:]) for value in re.findall('[0-9]+', match['rgb'])) if match else ()
    if len(rgb) != 3 or max(rgb) > 255:
        raise InputError(f'{path} has the line {line!r}, expected R G B NAME with three numbers of 0 to 255')
    return rgb, match['name'].strip()
