"""Images and label maps in tar files, for network file systems, where opening a file takes long.

A folder of shards holds tar files, `index.json` with the place of each file in them, and copies of the annotation
files. `ShardBackend` reads from it what mmengine's file functions are asked for, so that every dataset, sampler and
resumed run is as it is with the files themselves.
"""

import functools
import io
import itertools
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.fileio import BaseStorageBackend, register_backend

from ..errors import InputError
from ..registry import DATA_SAMPLERS
from ..runtime.files import read_json, write_json
from .samplers import SeededIndex, SeededInfiniteSampler, SeededSampler

BACKEND = 'bioattn_mm.shards'
INDEX = 'index.json'
HOW_TO_MAKE = 'make it with tools/make_shards.py CONFIG --out DIR'
BLOCK = 512  # the parts of a tar file are multiples of this many bytes
MAX_OPEN = 256  # shards that stay open: on most machines a process may have 1,024 files
SEED = 0  # the seed of the order of the samples in the shards


class ShardIndex:
    """Reads the files in a folder of shards, each of which must have the size that it was written with."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        try:
            content = read_json(
                self.folder / INDEX, f'copy it again, or {HOW_TO_MAKE}', shards=dict, files=dict, copies=list
            )
        except FileNotFoundError as error:
            raise InputError(f'no shards in {folder}: there is no {INDEX}; {HOW_TO_MAKE}') from error
        self.shards = list(content['shards'])  # names of the tar files
        self.files = content['files']  # by path below the data root: number of the shard, offset and size in bytes
        self.copies = content['copies']  # paths there of annotation files, which are in the folder as they are
        for name, size in content['shards'].items():
            path = self.folder / name
            if not path.is_file():
                raise InputError(f'the shard {path} is missing: copy it again')
            if path.stat().st_size != size:
                raise InputError(f'the shard {path} has {path.stat().st_size:,} bytes, not {size:,}: copy it again')
        self._open: dict[int, int] = {}  # file descriptors by number of the shard

    @functools.cached_property
    def folders(self) -> set[str]:
        """The folders that the files are in, and those that these are in."""
        direct = {name.rpartition('/')[0] for name in self.files}
        return {str(each) for name in map(PurePosixPath, direct) for each in (name, *name.parents)}

    def read(self, name: str) -> bytes:
        """The content of a file, in one read at its place in a shard."""
        if name not in self.files:
            raise FileNotFoundError(f'{name} is not in the shards of {self.folder}')
        shard, offset, size = self.files[name]
        path = self.folder / self.shards[shard]
        try:
            descriptor = self._open[shard] if shard in self._open else os.open(path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise InputError(f'the shard {path} is missing: copy it again') from error
        if len(self._open) < MAX_OPEN:
            self._open[shard] = descriptor
        try:
            # Forked processes would share the position of a file object; a file descriptor is read at any position.
            content = os.pread(descriptor, size, offset)
        finally:
            if shard not in self._open:
                os.close(descriptor)
        if len(content) < size:
            raise InputError(f'the shard {path} ends before the end of {name}: copy it again')
        return content


@functools.cache
def open_shards(folder: str) -> ShardIndex:
    """The index of a folder of shards, an absolute path; read once in a process, which workers are forked from."""
    return ShardIndex(folder)


@register_backend(BACKEND)
class ShardBackend(BaseStorageBackend):
    """mmengine's file functions for a data root that is in a folder of shards: `backend_args` of datasets."""

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
        name = self.name_of(filepath)
        return (self.index.folder / name).read_bytes() if name in self.index.copies else self.index.read(name)

    def get_text(self, filepath: str | Path, encoding: str = 'utf-8') -> str:
        return self.get(filepath).decode(encoding)

    def isfile(self, filepath: str | Path) -> bool:
        name = self.name_of(filepath)
        return name in self.index.files or name in self.index.copies

    def isdir(self, filepath: str | Path) -> bool:
        return (self.name_of(filepath) or '.') in self.index.folders

    def exists(self, filepath: str | Path) -> bool:
        return self.isfile(filepath) or self.isdir(filepath)

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
        found = [name for name in self.index.files if suffix is None or name.endswith(suffix)] if list_file else []
        found += self.index.folders - {'.'} if list_dir else ()
        below = sorted(name.removeprefix(prefix) for name in found if name.startswith(prefix) and name != folder)
        yield from (name for name in below if recursive or '/' not in name)


def write_shards(
    folder: Path,
    size: int,
    root: str,
    datasets: Iterable[tuple[str, BaseDataset]],
    copies: Iterable[str],
    track: Callable = lambda items, description: items,
) -> dict:
    """Write the images and label maps of datasets of mmdet or mmseg into tar files, and their index.

    Those of 'train' come in a random order, so that each tar file is a sample of all. Returns the index.

    Args:
        folder: An empty folder.
        size: Bytes of a tar file, about; a larger sample has one of its own.
        root: The data root, in which all files must be.
        datasets: Their splits, 'train' or 'val', and they themselves.
        copies: Annotation files, which are copied.
        track: Shows progress over the samples of a split, its `description`.
    """

    def name_of(path: str) -> str:
        name = os.path.relpath(path, root)
        if name.startswith('..'):
            raise InputError(f'{path} is not in the data root {root}, which the shards are of')
        return name

    shards: list[str] = []
    files: dict[str, list[int]] = {}
    for split, dataset in datasets:
        order, tar = np.arange(len(dataset)), None
        if split == 'train':
            order = np.random.default_rng(SEED).permutation(order)
        for index in track(order.tolist(), description=split):
            sample = dataset.get_data_info(index)
            paths = {name_of(sample[key]): sample[key] for key in ('img_path', 'seg_map_path') if sample.get(key)}
            contents = {name: Path(path).read_bytes() for name, path in paths.items() if name not in files}
            needed = sum(len(content) + 2 * BLOCK for content in contents.values())
            if tar is None or tar.offset + needed > size:
                if tar is not None:
                    tar.close()
                shards.append(f'{split}-{sum(name.startswith(split) for name in shards):06d}.tar')
                tar = tarfile.open(folder / shards[-1], 'w', format=tarfile.GNU_FORMAT)
            for name, content in contents.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
                start = tar.offset - -(-len(content) // BLOCK) * BLOCK
                files[name] = [len(shards) - 1, start, len(content)]
        if tar is not None:
            tar.close()
    names = sorted(set(map(name_of, copies)))
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(root) / name, folder / name)
    sizes = {name: (folder / name).stat().st_size for name in shards}
    content = dict(shards=sizes, files=files, copies=names)
    write_json(folder / INDEX, content, indent=None)
    return content


def shard_order(
    shards: np.ndarray, seeds: tuple[int, ...], rank: int, world_size: int, mixed: int, round_up: bool
) -> np.ndarray:
    """The order in which a process reads its samples: shards in random order, some of them at a time mixed.

    Each process has samples that follow each other in the order of the shards, so that it opens but its part of them.

    Args:
        shards: (N,) number of the shard of each sample.
        seeds: Non-negative integers that the order depends on, the same in all processes.
        rank, world_size: Number of the process, and how many there are.
        mixed: How many shards are mixed.
        round_up: Give each process as many samples, by repeating the first ones.
    """
    rng = np.random.default_rng(seeds)
    places = rng.permutation(shards.max() + 1)[shards]
    order = np.lexsort((rng.random(len(shards)), places))
    if round_up:
        order = np.resize(order, -(-len(order) // world_size) * world_size)
    order = np.array_split(order, world_size)[rank]
    groups = np.cumsum(np.diff(places[order], prepend=places[order[:1]]) != 0) // mixed
    return order[np.lexsort((np.random.default_rng((*seeds, rank)).random(len(order)), groups))]


class _ByShard:
    """The order of the samples in an epoch for a sampler of mmengine, with so many shards mixed."""

    def __init__(self, dataset: BaseDataset, mixed: int = 8, **kwargs: object) -> None:
        super().__init__(dataset, **kwargs)
        inner = getattr(dataset, 'dataset', dataset)  # `dataset` is a wrapper such as `ClassBalancedDataset`
        backend_args = getattr(inner, 'backend_args', None) or {}
        if backend_args.get('backend') != BACKEND:
            raise InputError(
                f'{type(inner).__name__} is not read from shards, which the sampler goes by: add --shards DIR'
            )
        backend = ShardBackend(backend_args['shards'], backend_args['root'])
        paths = (dataset.get_data_info(index)['img_path'] for index in range(len(dataset)))
        self.mixed, self.shards = mixed, np.array(list(map(backend.shard_of, paths)))

    def _order(self, epoch: int, round_up: bool = True) -> list[int]:
        seeds = self.seed, epoch
        return shard_order(self.shards, seeds, self.rank, self.world_size, self.mixed, round_up).tolist()


@DATA_SAMPLERS.register_module()
class ShardSampler(_ByShard, SeededSampler):
    """`DefaultSampler` that reads shard after shard in training; its samples are augmented as those of that one."""

    def __iter__(self) -> Iterator[SeededIndex]:
        if not self.shuffle:
            yield from super().__iter__()
            return
        for index in self._order(self.epoch, self.round_up):
            yield SeededIndex(index, (self.seed, self.epoch, index))


@DATA_SAMPLERS.register_module()
class InfiniteShardSampler(_ByShard, SeededInfiniteSampler):
    """`InfiniteSampler` that reads shard after shard, again and again in other orders."""

    def _indices_of_rank(self) -> Iterator[SeededIndex]:
        if not self.shuffle:
            yield from super()._indices_of_rank()
        place = self.rank
        for epoch in itertools.count():
            for index in self._order(epoch):
                yield SeededIndex(index, (self.seed, place))
                place += self.world_size
