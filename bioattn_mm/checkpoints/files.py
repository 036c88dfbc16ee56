"""Checkpoint files: reading their weights, also from the Hugging Face Hub, and writing them."""

import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import torch
from mmengine.runner.checkpoint import CheckpointLoader, load_from_local
from torch import Tensor

from ..errors import InputError
from ..files import atomic_path, atomic_write
from .sharded import DEEPSPEED_WEIGHTS, is_sharded, read_sharded
from .unpickling import HOLDS_CODE, code_refused, refused_class

# Keys of a checkpoint under which its weights may be, in this order; without any it is a bare state dict.
WEIGHTS_KEYS = ('state_dict', 'model', 'model_ema')
HUB, SAFETENSORS = 'hf://', '.safetensors'


def read_checkpoint(path: str, map_location: str | torch.device | None = 'cpu') -> object:
    """Read a checkpoint, refusing code in its pickle (see `unpickling`).

    Args:
        path: A file, a URL, `hf://OWNER/NAME/FILE` (see `fetch`), or the folder of a training with FSDP or DeepSpeed.
            A file whose name ends in `.safetensors` is read with the package of that name: its bare state dict.
        map_location: Device of the tensors, as in `torch.load`.

    Raises:
        InputError: The file is missing, cannot be read, or holds a class that mmengine does not write.
    """
    file = fetch(path)
    is_remote = '://' in file
    folder = Path(file)
    if not is_remote and folder.is_dir():
        if not is_sharded(folder) and not (folder / DEEPSPEED_WEIGHTS).is_file():
            raise InputError(f'{path} is a folder and no whole checkpoint of a training with FSDP or DeepSpeed')
        file = file if is_sharded(folder) else str(folder / DEEPSPEED_WEIGHTS)
    elif not is_remote and not folder.is_file():
        raise InputError(f'checkpoint not found: {path}')
    if file.endswith(SAFETENSORS) and not is_remote:
        return _read_safetensors(path, file, map_location)
    try:
        with code_refused():
            if is_remote:
                return CheckpointLoader.load_checkpoint(file, map_location=map_location, logger='silent')
            if is_sharded(file):
                return read_sharded(file, map_location or 'cpu')
            # None lets --trust-checkpoint decide.
            return torch.load(file, map_location=map_location, weights_only=None)
    except InputError:
        raise
    except Exception as error:
        refused = refused_class(error)
        if refused:
            raise InputError(f'{path} {HOLDS_CODE.format(refused)}') from error
        reason = str(error).strip().splitlines() or [type(error).__name__]
        if isinstance(error, (pickle.UnpicklingError, LookupError, ValueError, EOFError)):
            reason = ['it is not what torch.save writes']
        hint = '; download it by hand and name the file instead' if is_remote else ''
        raise InputError(f'cannot read the checkpoint {path}: {reason[0]}{hint}') from error


def fetch(path: str) -> str:
    """The local copy of a file on the Hugging Face Hub; any other path or URL as it is.

    The package huggingface_hub downloads the file at first use and keeps it in its cache. Its variables of the
    environment hold, such as HF_HOME for the place, HF_TOKEN for private repositories, HF_ENDPOINT for a mirror and
    HF_HUB_OFFLINE.

    Args:
        path: `hf://OWNER/NAME/FILE`, where FILE may lie in folders, or `hf://OWNER/NAME@REVISION/FILE` with a branch,
            a tag or a commit, whose slashes are written %2F.

    Raises:
        InputError: There is no such file, it cannot be downloaded, or the package is missing.
    """
    if not path.startswith(HUB):
        return path
    parts = re.fullmatch(r'hf://([^/@]+/[^/@]+)(?:@([^/]+))?/(.+)', path)
    if parts is None:
        raise InputError(f'expected hf://OWNER/NAME/FILE or hf://OWNER/NAME@REVISION/FILE, got {path}')
    try:
        from huggingface_hub import errors, hf_hub_download
    except ModuleNotFoundError as error:
        raise InputError(f'{path} needs a package that is not installed: pip install huggingface_hub') from error
    repository, revision, file = parts.groups()
    try:
        return hf_hub_download(repository, file, revision=unquote(revision) if revision else None)
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        reason = 'the hub cannot be reached, and the file is not in the cache'
        raise InputError(f'cannot fetch {path}: {reason}; download it by hand and name the file instead') from error
    except errors.GatedRepoError as error:
        reason = f'access to {repository} must be asked for on its page, then `hf auth login`'
        raise InputError(f'cannot fetch {path}: {reason}') from error
    except errors.RepositoryNotFoundError as error:
        reason = f'there is no repository {repository}, or it is private and needs `hf auth login`'
        raise InputError(f'cannot fetch {path}: {reason}') from error
    except errors.RevisionNotFoundError as error:
        raise InputError(f'cannot fetch {path}: {repository} has no revision {unquote(revision)}') from error
    except errors.EntryNotFoundError as error:
        raise InputError(f'cannot fetch {path}: {repository} has no file {file}') from error
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f'cannot fetch {path}: {reason}') from error


def _read_safetensors(path: str, file: str, map_location: str | torch.device | None) -> dict[str, Tensor]:
    """Read a safetensors file; `path` is its name in messages."""
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ModuleNotFoundError as error:
        raise InputError(f'{path} needs a package that is not installed: pip install safetensors') from error
    try:
        return load_file(file, device=str(map_location or 'cpu'))
    except (SafetensorError, OSError) as error:
        reason = 'it is not what safetensors writes' if isinstance(error, SafetensorError) else error
        raise InputError(f'cannot read the checkpoint {path}: {reason}') from error


@contextmanager
def mmengine_reads_all() -> Iterator[None]:
    """Context in which mmengine reads `hf://` paths, safetensors files and folders, too, as `read_checkpoint` does.

    That is in `load_from` of a Runner, `init_cfg` of any module, and the inferencers of mmdet and mmseg. At its end
    mmengine's table of loaders is what it was.
    """
    before = CheckpointLoader._schemes.copy()
    CheckpointLoader.register_scheme([HUB, rf'.*\{SAFETENSORS}$'], load_from_bioattn_mm, force=True)
    CheckpointLoader.register_scheme('', load_from_disk, force=True)
    try:
        yield
    finally:
        CheckpointLoader._schemes = before


def load_from_bioattn_mm(filename: str, map_location: str | torch.device | None = None) -> object:
    """A loader for mmengine, which logs what follows `load_from_` in its name."""
    return read_checkpoint(filename, map_location)


def load_from_disk(filename: str, map_location: str | torch.device | None = None) -> object:
    """The same for any path that no other loader takes: a folder, or a file, which mmengine reads."""
    read = read_checkpoint if Path(filename).is_dir() else load_from_local
    return read(filename, map_location)


def find_weights_key(checkpoint: object) -> str | None:
    """The key of `WEIGHTS_KEYS` under which a checkpoint has its weights; None for a bare state dict."""
    keys = [key for key in WEIGHTS_KEYS if isinstance(checkpoint, dict) and isinstance(checkpoint.get(key), dict)]
    return keys[0] if keys else None


def weights_of(path: str, checkpoint: object) -> dict[str, Tensor]:
    """Return the weights of a checkpoint that was read from `path`, without a parallel wrapper's prefix `module.`.

    Raises:
        InputError: It holds no weights.
    """
    key = find_weights_key(checkpoint)
    checkpoint = checkpoint[key] if key else checkpoint
    if not isinstance(checkpoint, dict) or not any(isinstance(value, Tensor) for value in checkpoint.values()):
        raise InputError(
            f'{path} holds no weights: expected a state dict, bare or under "state_dict" or "model", '
            f'got {type(checkpoint).__name__}'
        )
    return {name.removeprefix('module.'): value for name, value in checkpoint.items() if isinstance(value, Tensor)}


def dataset_meta_of(checkpoint: object) -> dict:
    """Classes and palette of a checkpoint: `meta.dataset_meta` of mmengine, `CLASSES` and `PALETTE` of mmcv 1."""
    meta = checkpoint.get('meta') if isinstance(checkpoint, dict) else None
    meta = meta if isinstance(meta, dict) else {}
    found = {'classes': meta.get('CLASSES'), 'palette': meta.get('PALETTE')}
    found.update({key.lower(): value for key, value in (meta.get('dataset_meta') or {}).items()})
    return {key: value for key, value in found.items() if value is not None}


def read_state_dict(path: str) -> dict[str, Tensor]:
    """Read the weights of a checkpoint: a file, a URL, or `hf://OWNER/NAME/FILE`.

    Accepts a bare state dict, or one under `state_dict`, `model` or `model_ema` (in this order), with or without
    the prefix `module.` of a parallel wrapper.

    Raises:
        InputError: The file is missing, is no checkpoint, or holds no weights.
    """
    return weights_of(path, read_checkpoint(path))


def write_checkpoint(checkpoint: dict, path: Path) -> None:
    """Write a checkpoint atomically: an interrupted write leaves an earlier file as it was."""
    with atomic_write(path) as file:
        torch.save(checkpoint, file)


def write_safetensors(weights: dict[str, Tensor], path: Path) -> None:
    """Write weights atomically as a safetensors file, which has no place for anything else.

    Raises:
        InputError: The package is missing.
    """
    try:
        from safetensors.torch import save_file
    except ModuleNotFoundError as error:
        raise InputError(f'{path} needs a package that is not installed: pip install safetensors') from error
    with atomic_path(path) as partial:
        # Two names must not share memory, as those of a layer that is used twice do.
        save_file({name: value.contiguous().clone() for name, value in weights.items()}, partial, dict(format='pt'))
