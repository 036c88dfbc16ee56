"""Sharded checkpoints: folders into which every process of a training writes its part of the tensors.

The tensors are stored by `torch.distributed.checkpoint`: a file of each process, and `.metadata`, which says what is
where. `rest.pth` has everything else. Together they are the dict that mmengine saves into one file, and any number of
processes can read it: each the parts of the tensors that it has, or one all of them.
"""

import pickle
import warnings
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata

from ..errors import InputError

METADATA, REST = '.metadata', 'rest.pth'

# Where a tensor is in the dict of a checkpoint, such as ('optimizer', 'state', 3, 'exp_avg').
TensorPath = tuple[str | int, ...]


def is_sharded(path: str | Path) -> bool:
    """Whether a path is the folder of a whole sharded checkpoint; `.metadata` is written when all tensors are."""
    return all(Path(path, name).is_file() for name in (METADATA, REST))


def is_whole(path: str | Path) -> bool:
    """Whether a path is a checkpoint: a file, or the folder of a whole sharded one."""
    return Path(path).is_file() or is_sharded(path)


def split(checkpoint: dict) -> tuple[dict[str, Tensor], dict]:
    """Split a checkpoint, dicts in dicts, into what the two parts of a folder hold.

    Returns:
        The tensors that are not in lists, under their paths joined by dots, and the content of `rest.pth`: the
        `checkpoint` without them and their `paths`.
    """
    tensors, paths = {}, {}

    def without_tensors(node: dict, path: TensorPath) -> dict:
        kept = {}
        for name, value in node.items():
            own = (*path, name)
            if isinstance(value, Tensor):
                key = '.'.join(map(str, own))
                tensors[key], paths[key] = value, own
            else:
                kept[name] = without_tensors(value, own) if type(value) in (dict, OrderedDict) else value
        return kept

    return tensors, dict(checkpoint=without_tensors(checkpoint, ()), paths=paths)


def write_rest(folder: Path, rest: dict) -> None:
    """Complete a folder, of which all tensors and `.metadata` are written, with the `rest` that `split` returns.

    The checksum of `.metadata` is written with it: that file has none.
    """
    torch.save(dict(rest, checksum=zlib.crc32((folder / METADATA).read_bytes())), folder / REST)


def read_sharded(
    folder: str | Path,
    map_location: str | torch.device = 'cpu',
    like: Callable[[TensorPath, torch.Size, torch.dtype], Tensor | None] = lambda *_: None,
) -> dict:
    """Read a sharded checkpoint; each process reads by itself.

    Args:
        folder: The checkpoint.
        map_location: Device of the tensors; 'meta' for their shapes alone.
        like: Given the path, shape and dtype of a tensor, the tensor to read it into, such as a `DTensor` of which
            only the local part is read; None for the whole tensor on `map_location`.

    Raises:
        InputError: Files are missing, or are not what a training writes.
    """
    folder = Path(folder)
    tensors = {}
    try:
        reader = _Reader(folder)
        metadata = reader.read_metadata()
        # None lets --trust-checkpoint decide.
        rest = torch.load(folder / REST, map_location='cpu', weights_only=None)
        checksum = zlib.crc32((folder / METADATA).read_bytes())
        if rest.get('checksum', checksum) != checksum:
            raise ValueError(f'{METADATA} is damaged')
        for key, path in rest['paths'].items():
            stored = metadata.state_dict_metadata[key]
            size, dtype = stored.size, stored.properties.dtype
            given = like(path, size, dtype)
            tensors[key] = torch.empty(size, dtype=dtype, device=map_location) if given is None else given
        files = {info.relative_path for info in metadata.storage_data.values()}
    except InputError:
        raise
    except Exception as error:
        if isinstance(error, pickle.UnpicklingError) and 'GLOBAL ' in str(error):
            raise  # the caller names the refused class
        raise InputError(f'cannot read the checkpoint {folder}: it is not what a training writes') from error
    missing = sorted(files - {path.name for path in folder.iterdir()})
    if missing:
        raise InputError(f'{folder} lacks {missing[0]}: all machines of a training must write into the same folder')
    try:
        if str(map_location) != 'meta':
            with warnings.catch_warnings():
                warnings.filterwarnings('ignore', message='torch.distributed is disabled')
                planner = DefaultLoadPlanner(flatten_state_dict=False)
                dcp.load(tensors, storage_reader=reader, planner=planner, no_dist=True)
    except (Exception, CheckpointException) as error:  # `CheckpointException` is no `Exception`
        raise InputError(f'cannot read the checkpoint {folder}: its files of tensors are damaged') from error
    for key, (*parents, last) in rest['paths'].items():
        node = rest['checkpoint']
        for name in parents:
            node = node[name]
        node[last] = tensors[key]
    return rest['checkpoint']


class _Reader(dcp.FileSystemReader):
    """PyTorch's reader, which unpickles `.metadata`; this one refuses classes that PyTorch does not write there."""

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        with Path(self.path, METADATA).open('rb') as file:
            metadata = _MetadataUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise TypeError(f'expected Metadata, got {type(metadata).__name__}')
        return metadata


class _MetadataUnpickler(pickle.Unpickler):
    ALLOWED = {
        'torch.distributed.checkpoint.metadata': (
            'Metadata', 'TensorStorageMetadata', 'TensorProperties', 'ChunkStorageMetadata', 'MetadataIndex',
            'StorageMeta', '_MEM_FORMAT_ENCODING',
        ),
        'torch.distributed.checkpoint.filesystem': ('_StorageInfo',),
        'torch.serialization': ('_get_layout',),
        'pathlib': ('PosixPath',),
    }  # fmt: skip

    def find_class(self, module: str, name: str) -> object:
        found = super().find_class(module, name) if module in ('torch', *self.ALLOWED) else None
        if name in self.ALLOWED.get(module, ()) or found is torch.Size or isinstance(found, torch.dtype):
            return found
        raise pickle.UnpicklingError(f'Unsupported global: GLOBAL {module}.{name}')
