"""The annotations of one split in any format: what they become is COCO's format, which all else reads and checks."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ...datasets.coco_file import CocoFile, ImageEntry, Length, Name
from ...datasets.image_size import read_size
from ...datasets.problem import Problem
from ...errors import first_line


@dataclass
class Content:
    """What a source holds.

    Attributes:
        file: Its images and objects.
        images: Folder of the images; None: it is to be looked for.
        left_out: What is not used without being wrong in itself, such as a label file without image.
        notes: What was done, one line each.
    """

    file: CocoFile
    images: Path | None = None
    left_out: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def changes(self) -> list[str]:
        """The notes, and how many files are left out of each kind."""
        kinds = Counter(problem.kind for problem in self.left_out)
        such = {problem.kind: problem for problem in reversed(self.left_out)}
        return self.notes + [f'{number} left out: {kind}, such as {such[kind]}' for kind, number in kinds.items()]


@dataclass(frozen=True)
class Source:
    """The annotations of a split, which are read later.

    Attributes:
        path: The file or folder that messages name.
        places: Where its images are listed, which tells whether two splits are the same.
        read: Reads them, given the names of the classes if other data have decided on them.
    """

    path: Path
    places: tuple[Path, ...]
    read: Callable[[tuple[str, ...] | None], Content]


def folder_of(images: Sequence[Path]) -> Path:
    """The folder that all of some images are below."""
    return Path(os.path.commonpath([image.parent for image in images]))


def image_entry(number: int, image: Path, folder: Path, size: tuple[int, int] | None = None) -> ImageEntry | Problem:
    """An image in COCO's format, or why it cannot be used.

    Args:
        number: Its id.
        image: The file.
        folder: The folder that its name begins from.
        size: Its width and height, if a file says them; otherwise its header is read.
    """
    try:
        width, height = size or read_size(image, decode=False)
        msgspec.convert((width, height), tuple[Length, Length])
    except Exception as error:  # damaged images raise errors of many kinds
        return Problem('image unreadable', str(image), first_line(error))
    return ImageEntry(number, image.relative_to(folder).as_posix(), width, height)


def is_class_name(name: object) -> bool:
    """Whether the name of a class is text that can be drawn."""
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError:
        return False
    return True
