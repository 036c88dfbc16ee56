"""Where Pascal VOC's folders have images, annotations and the lists of each split."""

from dataclasses import dataclass
from pathlib import Path

from ...datasets.problem import Problem
from ...errors import InputError
from ...runtime.inputs import images_below, is_hidden
from .folders import by_split

XML_FOLDERS = ('Annotations', 'annotations')
IMAGE_FOLDERS = ('JPEGImages', 'images')
CLASS_MAPS, OBJECT_MAPS = 'SegmentationClass', 'SegmentationObject'
LISTS = 'ImageSets'
MISSING = 'image missing'  # kind of problem


def find_root(source: Path) -> Path | None:
    """The folder with JPEGImages and annotations or label maps: one itself, or below VOCdevkit; None without.

    Raises:
        InputError: There are several.
    """
    if source.name in XML_FOLDERS:
        source = source.parent
    found = [place for place in (source, *sorted(source.glob('VOC*')), *sorted(source.glob('VOC*/VOC*')))
             if any((place / name).is_dir() for name in IMAGE_FOLDERS) and _is_root(place)]  # fmt: skip
    if len(found) > 1 and found[0] != source:
        raise InputError(f'{source} has {", ".join(path.name for path in found)}: name one with --data')
    return found[0] if found else None


def _is_root(place: Path) -> bool:
    if (place / CLASS_MAPS).is_dir() and (place / LISTS).is_dir():
        return True
    return any(next((place / name).rglob('*.xml'), None) is not None for name in XML_FOLDERS)


@dataclass(frozen=True)
class SplitList:
    """The file that lists the images of a split, one name without suffix a line.

    Attributes:
        path: The file.
        stems: The names, and the lines where they stand.
    """

    path: Path
    stems: dict[str, int]

    def absent(self, stem: str, what: Path) -> Problem:
        """The problem that something of an image is not there."""
        return Problem(MISSING, str(self.path), f'line {self.stems[stem]}: there is no {what}')


def find_lists(root: Path, kind: str) -> dict[str, SplitList]:
    """The lists of the splits in ImageSets/Main or ImageSets/Segmentation; without train, trainval is that."""
    folder = root / LISTS / kind
    names = [path.stem for path in folder.glob('*.txt') if not is_hidden(Path(path.name))] if folder.is_dir() else []
    paths = {split: folder / f'{name}.txt' for split, name in by_split(names, folder).items()}
    return {split: SplitList(path, _stems(path)) for split, path in paths.items()}


def _stems(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding='utf-8-sig').splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f'{path} is no text in UTF-8: expected names of images, one a line') from error
    stems: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        # Some programs quote names that have spaces.
        name = line.strip().strip('\'"')
        if name:
            stems.setdefault(name, number)
    if not stems:
        raise InputError(f'{path} is empty: expected names of images, one a line')
    return stems


def image_folder(root: Path) -> Path:
    """The folder of the images."""
    return next(root / name for name in IMAGE_FOLDERS if (root / name).is_dir())


def by_stem(folder: Path) -> dict[str, Path]:
    """The images below a folder by their path from there without suffix."""
    return {
        path.relative_to(folder).with_suffix('').as_posix(): path for path in images_below(folder, required=False)
    }
