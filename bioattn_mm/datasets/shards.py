"""Images and label maps in tar files, for network file systems, where opening a file takes long.

A folder of shards holds tar files as WebDataset reads them, `index.json` with the place of each file in them, and
copies of the annotation files. `ShardBackend` reads from it what mmengine's file functions are asked for, so that
every dataset, sampler and resumed run is as it is with the files themselves.
"""

import functools
import io
import json
import os
import shutil
import tarfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.fileio import BaseStorageBackend, register_backend

from ..errors import InputError
from ..files import check_entries, read_json

BACKEND = 'bioattn_mm.shards'
INDEX = 'index.json'
VERSION = 1
HOW_TO_MAKE = 'make it with tools/make_shards.py CONFIG --out DIR'
# Shards that a process keeps open.
MAX_OPEN = 256
BLOCK = 512  # bytes, of which the parts of a tar file are multiples
SEED = 0  # of the order of the samples in the shards
# What a sample's files are called in a tar file, after the name that they share.
LABEL_MAP = '.seg'
METADATA = '.json'


class ShardIndex:
    """Reads the files in a folder of shards.

    Args:
        folder: The folder.

    Attributes:
        shards (list[str]): Names of the tar files.
        files (dict[str, list[int]]): By path below the data root: number of the shard, offset and size in bytes.
        copies (list[str]): Paths below the data root of the annotation files, which are in the folder as they are.

    Raises:
        InputError: It holds no shards, or one is missing or not of the size that it was written with.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        how = f'copy it again, or {HOW_TO_MAKE}'
        try:
            content = read_json(self.folder / INDEX, how, version=int)
        except FileNotFoundError as error:
            raise InputError(f'no shards in {folder}: there is no {INDEX}; {HOW_TO_MAKE}') from error
        if content['version'] != VERSION:
            raise InputError(f'{self.folder / INDEX} is of version {content["version"]}, expected {VERSION}')
        check_entries(self.folder / INDEX, content, how, shards=dict, files=dict, copies=list)
        self.shards, self.files = list(content['shards']), content['files']
        self.copies = content['copies']
        for name, size in content['shards'].items():
            path = self.folder / name
            if not path.is_file():
                raise InputError(f'the shard {path} is missing: copy it again')
            if path.stat().st_size != size:
                raise InputError(f'the shard {path} has {path.stat().st_size:,} bytes, not {size:,}: copy it again')
        self._open: OrderedDict[int, int] = OrderedDict()  # file descriptors by number of the shard
        self._folders: set[str] | None = None

    @property
    def folders(self) -> set[str]:
        """The folders that the files are in, and those that these are in."""
        if self._folders is None:
            direct = {name.rpartition('/')[0] for name in self.files}
            self._folders = {str(each) for name in map(PurePosixPath, direct) for each in (name, *name.parents)}
        return self._folders

    def read(self, name: str) -> bytes:
        """The content of a file, in one read at its place in a shard that stays open.

        Raises:
            FileNotFoundError: It is in no shard.
            InputError: Its shard has been removed or shortened.
        """
        if name not in self.files:
            raise FileNotFoundError(f'{name} is not in the shards of {self.folder}')
        shard, offset, size = self.files[name]
        content = b''
        while len(content) < size:  # network file systems may give less at a time
            # Not a file object: processes that were forked would share its place in the file.
            part = os.pread(self._descriptor(shard), size - len(content), offset + len(content))
            if not part:
                path = self.folder / self.shards[shard]
                raise InputError(f'the shard {path} ends before the end of {name}: copy it again')
            content = content + part if content else part
        return content

    def _descriptor(self, shard: int) -> int:
        if shard in self._open:
            self._open.move_to_end(shard)
            return self._open[shard]
        path = self.folder / self.shards[shard]
        try:
            self._open[shard] = os.open(path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise InputError(f'the shard {path} is missing: copy it again') from error
        if len(self._open) > MAX_OPEN:
            os.close(self._open.popitem(last=False)[1])
        return self._open[shard]


@functools.cache
def open_shards(folder: str) -> ShardIndex:
    """The index of a folder of shards, an absolute path; read once in a process, which workers are forked from."""
    return ShardIndex(folder)


@register_backend(BACKEND)
class ShardBackend(BaseStorageBackend):
    """mmengine's file functions for a data root that is in shards: `backend_args` of datasets and transforms.

    Args:
        shards: The folder of shards.
        root: The data root that the paths begin with.
    """

    def __init__(self, shards: str, root: str) -> None:
        self.index = open_shards(os.path.abspath(shards))
        self.root = os.path.normpath(root)

    def name_of(self, path: str | Path) -> str:
        """The path below the data root; '' for the root, the path itself if it is elsewhere."""
        path = os.path.normpath(path)
        if path == self.root:
            return ''
        return path.removeprefix(f'{self.root}/') if self.root != '.' else path

    def shard_of(self, path: str | Path) -> int:
        """Number of the shard that a file is in."""
        return self.index.files[self.name_of(path)][0]

    def get(self, filepath: str | Path) -> bytes:
        """The content of a file."""
        name = self.name_of(filepath)
        if name in self.index.copies:
            return (self.index.folder / name).read_bytes()
        return self.index.read(name)

    def get_text(self, filepath: str | Path, encoding: str = 'utf-8') -> str:
        """The content of a text file."""
        return self.get(filepath).decode(encoding)

    def isfile(self, filepath: str | Path) -> bool:
        """Whether a file is there."""
        name = self.name_of(filepath)
        return name in self.index.files or name in self.index.copies

    def isdir(self, filepath: str | Path) -> bool:
        """Whether there are files in a folder."""
        return (self.name_of(filepath) or '.') in self.index.folders

    def exists(self, filepath: str | Path) -> bool:
        """Whether a file or a folder is there."""
        return self.isfile(filepath) or self.isdir(filepath)

    def join_path(self, filepath: str | Path, *filepaths: str | Path) -> str:
        """Join parts of a path."""
        return os.path.join(filepath, *filepaths)

    @contextmanager
    def get_local_path(self, filepath: str | Path) -> Iterator[str]:
        """Context with the path of an annotation file: of its copy beside the shards, if there is one."""
        name = self.name_of(filepath)
        yield str(self.index.folder / name if name in self.index.copies else filepath)

    def list_dir_or_file(
        self,
        dir_path: str | Path,
        list_dir: bool = True,
        list_file: bool = True,
        suffix: str | tuple[str, ...] | None = None,
        recursive: bool = False,
    ) -> Iterator[str]:
        """Paths of what is in a folder, relative to it, by name; see mmengine's `LocalBackend`."""
        folder = self.name_of(dir_path)
        prefix = f'{folder}/' if folder else ''
        found = []
        if list_file:
            found += [name for name in self.index.files if suffix is None or name.endswith(suffix)]
        if list_dir:
            found += self.index.folders - {'.'}
        below = sorted(name.removeprefix(prefix) for name in found if name.startswith(prefix) and name != folder)
        yield from (name for name in below if recursive or '/' not in name)


class ShardWriter:
    """Writes samples into tar files of about a size, and their index.

    Args:
        folder: An empty folder.
        size: Bytes of a tar file; a larger sample has one of its own.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        self.shards: dict[str, int] = {}
        self.files: dict[str, list[int]] = {}
        self.names: set[str] = set()
        self._tar: tarfile.TarFile | None = None

    def begin(self, split: str) -> None:
        """Begin a new tar file, for samples of 'train' or 'val', after those that the split has."""
        self._close()
        self._split, self._number = split, sum(name.startswith(f'{split}-') for name in self.shards)

    def add(self, root: str, image: str, label_map: str | None, metadata: dict) -> None:
        """Add a sample.

        Args:
            root: The data root.
            image: Path of the image, in the data root.
            label_map: Path of its label map there, if it has one.
            metadata: What else is known of the sample, for those who read the tar files by themselves.

        Raises:
            InputError: A file is not below the data root.
            OSError: A file cannot be read.
        """
        relative = _below(root, image)
        key = relative.rpartition('.')[0].replace(
            '.', '_'
        )  # WebDataset takes the rest from the first dot for a suffix
        while key in self.names:
            key += '_'
        members = [(key + Path(image).suffix, relative, Path(image).read_bytes())]
        if label_map is not None:
            content = Path(label_map).read_bytes()
            members.append((key + LABEL_MAP + Path(label_map).suffix, _below(root, label_map), content))
        described = json.dumps({'path': relative, **metadata}, default=np.ndarray.tolist).encode()
        members = [each for each in members if each[1] not in self.files]
        members.append((key + METADATA, None, described))
        if self._tar is None or self._tar.offset + sum(len(member[2]) + 2 * BLOCK for member in members) > self.size:
            self._next()
        self.names.add(key)
        for name, path, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            self._tar.addfile(info, io.BytesIO(content))
            if path is not None:
                padded = -(-len(content) // BLOCK) * BLOCK
                self.files[path] = [len(self.shards) - 1, self._tar.offset - padded, len(content)]

    def finish(self, root: str, copies: Sequence[str]) -> None:
        """Write the index, and copy annotation files that lie in the data root."""
        self._close()
        names = sorted({_below(root, path) for path in copies})
        for name in names:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(root) / name, self.folder / name)
        content = dict(version=VERSION, shards=self.shards, files=self.files, copies=names)
        (self.folder / INDEX).write_text(json.dumps(content), encoding='utf-8')

    def _next(self) -> None:
        self._close()
        self._name = f'{self._split}-{self._number:06d}.tar'
        self._number += 1
        self.shards[self._name] = 0
        self._tar = tarfile.open(self.folder / self._name, 'w', format=tarfile.GNU_FORMAT)

    def _close(self) -> None:
        if self._tar is not None:
            self._tar.close()
            self.shards[self._name] = (self.folder / self._name).stat().st_size
            self._tar = None


def write_samples(writer: ShardWriter, split: str, dataset: BaseDataset, advance: Callable[[], object]) -> None:
    """Write all samples of a dataset; those of 'train' in a random order, so that each shard is a sample of all.

    Args:
        writer: Where to.
        split: 'train' or 'val'.
        dataset: Of mmdet or mmseg, with a data root.
        advance: Called after each sample.
    """
    writer.begin(split)
    order = np.arange(len(dataset))
    if split == 'train':
        order = np.random.default_rng(SEED).permutation(order)
    for index in order.tolist():
        sample = dataset.get_data_info(index)
        image, label_map = sample.pop('img_path'), sample.pop('seg_map_path', None)
        writer.add(dataset.data_root, image, label_map, sample)
        advance()


def _below(root: str, path: str) -> str:
    relative = os.path.relpath(path, root)
    if relative.startswith('..'):
        raise InputError(f'{path} is not in the data root {root}, which the shards are of')
    return relative
