"""The files in which own data name their classes and the colours of these."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...errors import InputError
from .folders import read_lines

IGNORED = 255  # value of the pixels in a label map that do not count
CLASSES_FILE = 'classes.txt'
PALETTE_FILES = ('palette.txt', 'labelmap.txt', 'label_colors.txt')
# Colours of this name in a palette file are of pixels that do not count.
IGNORED_NAME = 'ignore'
# The lines of a palette file: R G B NAME with spaces or commas, or CVAT's label, colour, parts and actions.
PLAIN_LINE = re.compile(r'(?P<rgb>[0-9]+[\s,]+[0-9]+[\s,]+[0-9]+)[\s,]*(?P<name>.*)')
CVAT_LINE = re.compile(r'(?P<name>[^:]+):(?P<rgb>[0-9,\s]*):[^:]*:[^:]*')

Colours = list[tuple[int, int, int]]


def classes_and_colours(places: Iterable[Path]) -> tuple[tuple[str, ...], Colours | None, Colours | None]:
    """Read the files of classes and colours in the first folder that has them.

    Returns the names, their colours, and these and then the colours of pixels that do not count; None without.
    """
    for place in dict.fromkeys(places):
        palette = next((_read_palette(place / name) for name in PALETTE_FILES if (place / name).is_file()), None)
        classes = read_names(place / CLASSES_FILE) if (place / CLASSES_FILE).is_file() else None
        if palette is not None and classes not in (None, palette[0]):
            raise InputError(
                f'{place} has the classes {", ".join(palette[0])} in its palette file, and {", ".join(classes)} in '
                f'{CLASSES_FILE}: expected the same in the same order'
            )
        if palette or classes:
            return palette or (classes, None, None)
    raise InputError(
        f'no names of classes: looked for {CLASSES_FILE}, one name a line, and {PALETTE_FILES[0]}, one R G B NAME a '
        f'line, in {next(iter(places))}'
    )


def classes_named_in(folder: Path) -> tuple[str, ...] | None:
    """The names of the classes in the files of a folder; None without such a file."""
    if not any((folder / name).is_file() for name in (CLASSES_FILE, *PALETTE_FILES)):
        return None
    return classes_and_colours([folder])[0]


def read_names(path: Path) -> tuple[str, ...]:
    """The names in a file that has one a line; a # belongs to a name, as this format has no comments."""
    return _checked([line.strip() for line in read_lines(path) if line.strip()], path)


def is_background(name: str) -> bool:
    """Whether a name is that of no object: labelme writes it `_background_`."""
    return name.lower() in ('background', '_background_')


def _checked(classes: Sequence[str], path: Path) -> tuple[str, ...]:
    if not classes:
        raise InputError(f'{path} names no classes')
    return tuple(classes)


def _read_palette(path: Path) -> tuple[tuple[str, ...], Colours | None, Colours | None]:
    """Read a palette file; see `classes_and_colours` for what is returned."""
    stripped = filter(None, map(str.strip, read_lines(path)))
    # A class of CVAT's may begin with #, as comments do; an entry may stand twice, with the same colour and name.
    kept = (line for line in stripped if not line.startswith('#') or CVAT_LINE.fullmatch(line))
    lines = list(dict.fromkeys(_colour(line, path) for line in kept))
    classes = _checked([name for _, name in lines if name != IGNORED_NAME], path)
    if not any(colour for colour, _ in lines):
        return classes, None, None
    bare = [name for colour, name in lines if colour is None]
    if bare or '' in classes:
        raise InputError(f'{path} has a colour without a name, or a name without: expected R G B NAME in each line')
    colours, ignored = (
        [colour for colour, name in lines if (name == IGNORED_NAME) == is_ignored] for is_ignored in (False, True)
    )
    if len(set(colours + ignored)) < len(lines):
        raise InputError(f'{path} has the same colour twice')
    return classes, colours, colours + ignored


def _colour(line: str, path: Path) -> tuple[tuple[int, int, int] | None, str]:
    """The colour and the name in a line; CVAT's may lack the colour."""
    match = CVAT_LINE.fullmatch(line) or PLAIN_LINE.fullmatch(line)
    if match and not match['rgb'].strip():
        return None, match['name'].strip()
    # int() refuses numbers of thousands of digits.
    rgb = tuple(int(value[-9:]) for value in re.findall('[0-9]+', match['rgb'])) if match else ()
    if len(rgb) != 3 or max(rgb) > 255:
        raise InputError(f'{path} has the line {line!r}, expected R G B NAME with three numbers of 0 to 255')
    return rgb, match['name'].strip()
