"""What own data of all kinds share: their splits, validation images drawn at random, and temporary files."""

import atexit
import functools
import random
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import InputError
from ...runtime.paths import images_below, is_hidden
from ..checks import Problem
from .arguments import DataArguments

# The words for each split in names of files and folders.
SPLITS = dict(train=('train', 'training', 'trainval'), val=('val', 'valid', 'validation'), test=('test', 'testing'))
# Where there are no validation images, this part of the training images, drawn with this seed.
VAL_FRACTION = 0.1
VAL_SEED = 0


@dataclass
class OwnData:
    """The data of a folder as datasets of mmdet, mmseg or mmpretrain."""

    classes: tuple[str, ...]
    palette: list[tuple[int, int, int]] | None = None  # R, G and B of each class in 0 to 255, if the folder says it
    datasets: dict[str, dict] = field(default_factory=dict)  # configs by split (SPLITS), without pipeline
    notes: list[str] = field(default_factory=list)  # the lines of the log: what was found and done
    files: dict[str, list[Path]] = field(default_factory=dict)  # the images by split


def sources_of(arguments: DataArguments, find: Callable[[Path], dict]) -> dict:
    """Where the data of each split are, in the order of `SPLITS`, of what `find` finds of each in a folder."""
    for option in ('data', 'train_data', 'val_data'):
        path = getattr(arguments, option)
        if path and not Path(path).exists():
            raise InputError(f'--{option.replace("_", "-")} not found: {path}')
    found = find(Path(arguments.data)) if arguments.data else {}
    for split, path in (('train', arguments.train_data), ('val', arguments.val_data)):
        if path:
            inside = find(Path(path))
            if split not in inside and len(inside) > 1:
                raise InputError(f'{path} has {" and ".join(inside)}, expected {split} or a single set of images')
            found[split] = inside[split] if split in inside else next(iter(inside.values()))
    return {split: found[split] for split in SPLITS if split in found}


def notes_of_sources(places: dict[str, tuple[Path, ...]]) -> list[str]:
    """What is to be said of where the splits are: whether training and validation images are the same."""
    train, val = ([path.resolve() for path in places.get(split, ())] for split in ('train', 'val'))
    if not train or train != val:
        return []
    return [f'validated on the images that are trained on ({val[0]}): the metrics say little of others']


def notes_of_left_out(problems: list[Problem]) -> list[str]:
    """How many files are left out for each kind of problem, and the first of them."""
    first = {problem.kind: problem for problem in reversed(problems)}
    counts = Counter(problem.kind for problem in problems)
    return [f'{count} left out: {kind}, such as {first[kind]}' for kind, count in counts.items()]


def draw_val(names: list[str], source: Path) -> set[str]:
    """Draw `VAL_FRACTION` of images for validation, at least one: the same ones of the same names in every run."""
    if len(names) < 2:
        raise InputError(
            f'{source} has {len(names)} image: expected two at least, one to train on and one to validate'
        )
    return set(random.Random(VAL_SEED).sample(sorted(names), max(1, round(VAL_FRACTION * len(names)))))


def read_lines(path: Path, expected: str = '') -> list[str]:
    """The lines of a text file in UTF-8; an `InputError` says that it is another file, and what was expected."""
    text = path.read_bytes()
    try:
        if b'\0' in text:
            raise ValueError('binary data')
        return text.decode('utf-8-sig').splitlines()
    except ValueError as error:
        raise InputError(f'{path} is no text in UTF-8' + (f': expected {expected}' if expected else '')) from error


def names_below(folder: Path) -> list[str]:
    """The images below a folder, seen from there."""
    return [path.relative_to(folder).as_posix() for path in images_below(folder, required=False)]


@functools.cache
def _temporary_folder() -> Path:
    """A folder that is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix='bioattn_mm_'))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def temporary_file(name: str) -> Path:
    """Where to write a temporary file, in a folder of its own."""
    return Path(tempfile.mkdtemp(dir=_temporary_folder())) / name


def is_temporary(path: Path) -> bool:
    """Whether `temporary_file` gave a path."""
    return path.is_relative_to(_temporary_folder())


def split_of(path: Path) -> str:
    """The split that a file name says, else the folder nearest to it, else ''."""
    return next(filter(None, map(split_of_name, (path.stem, *reversed(path.parts[:-1])))), '')


def split_of_name(name: str) -> str:
    """The split that a name of any format says: 'train' of 'Training', 'train2017' and 'cat_train'; '' if none."""
    words = _words(name)
    return next((split for split, names in SPLITS.items() if not words.isdisjoint(names)), '')


def by_split(names: Iterable[str], where: Path) -> dict[str, str]:
    """Of the names of folders, or of files without suffix, in one place that of each split, in the order of `SPLITS`.

    A name that is nothing but a split's, in capitals or with a number, goes before one that has other words, too:
    Pascal VOC has train.txt beside cat_train.txt.
    """
    found: dict[str, str] = {}
    names = sorted(names)
    for split, words in SPLITS.items():
        ranks = {
            name: (
                words.index(name) if name in words else len(words),
                not _words(name) <= set(words),
                'trainval' in _words(name),
            )
            for name in names
            if split_of_name(name) == split
        }
        best = [name for name, rank in ranks.items() if rank == min(ranks.values())]
        if len(best) > 1:
            raise InputError(
                f'{where} has {" and ".join(best[:3])}, each of which could be {split}: name one with --train-data '
                'or --val-data'
            )
        found.update((split, name) for name in best)
    return found


def _words(name: str) -> set[str]:
    """The words of a name in small letters, as of `TrainImages_2017`."""
    return set(re.findall('[a-z]+', re.sub('(?<=[a-z])(?=[A-Z])', ' ', name).lower()))


def subfolders(folder: Path) -> list[str]:
    """The names of the folders in a folder, without those that are hidden."""
    found = (path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else ()
    return sorted(name for name in found if not is_hidden(Path(name)))


def left_over(folder: Path, used: Collection[Path]) -> list[str]:
    """What is said of the folders with images in a folder that are of no split."""
    return [
        f'not used: the images of {folder / name}, which are those of no split (train, val or test)'
        for name in subfolders(folder)
        if folder / name not in used and images_below(folder / name, required=False)
    ]
