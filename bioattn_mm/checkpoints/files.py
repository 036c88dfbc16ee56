"""Checkpoint files: reading their weights, also from the Hugging Face Hub, and writing them."""

import functools
import logging
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import torch
from mmengine.runner.checkpoint import CheckpointLoader
from torch import Tensor

from ..errors import InputError, first_line
from ..files import atomic_path, atomic_write
from .sharded import DEEPSPEED_WEIGHTS, is_sharded, read_sharded
from .unpickling import HOLDS_CODE, code_refused, refused_class

# Keys of a checkpoint under which its weights may be, in this order; without any it is a bare state dict.
# The averaged weights (EMA) are taken where there are some: they are the ones that were tested.
WEIGHTS_KEYS = ('state_dict_ema', 'model_ema', 'ema', 'state_dict', 'model')
# Wrappers put these before the names, in any order: those of several processes the first, torch.compile the second.
WRAPPERS = ('module.', '_orig_mod.')
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
        of_content = isinstance(error, (pickle.UnpicklingError, LookupError, ValueError, EOFError))
        reason = 'it is not what torch.save writes' if of_content else first_line(error)
        hint = '; download it by hand and name the file instead' if is_remote else ''
        raise InputError(f'cannot read the checkpoint {path}: {reason}{hint}') from error


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
        raise InputError(f'cannot fetch {path}: {first_line(error)}') from error


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
    """Context in which mmengine reads what `read_checkpoint` reads, and uses no weights but those of `weights_of`.

    That is in `load_from` of a Runner, `init_cfg` of any module, and the inferencers of mmdet and mmseg. At its end
    mmengine's table of loaders is what it was.
    """
    before = CheckpointLoader._schemes.copy()
    CheckpointLoader.register_scheme(['', HUB, rf'.*\{SAFETENSORS}$'], load_from_disk, force=True)
    for prefix, loader in CheckpointLoader._schemes.items():
        CheckpointLoader._schemes[prefix] = _plain(loader)
    try:
        yield
    finally:
        CheckpointLoader._schemes = before


def load_from_disk(filename: str, map_location: str | torch.device | None = None) -> object:
    """A loader for mmengine, which logs what follows `load_from_` in its name."""
    return read_checkpoint(filename, map_location)


def _plain(loader: Callable) -> Callable:
    """A loader of mmengine that returns what `plain_checkpoint` makes of its checkpoints."""

    @functools.wraps(loader)
    def load(filename: str, map_location: str | torch.device | None = None) -> dict:
        return plain_checkpoint(filename, loader(filename, map_location))

    return load


def plain_checkpoint(path: str, checkpoint: object) -> dict:
    """Return a checkpoint that was read from `path` with its weights where mmengine looks for them, and no program.

    mmengine looks under `state_dict`, or takes a bare state dict, and goes on with random weights where there is
    none. When it resumes, it runs the text `config` of `meta`.

    Raises:
        InputError: It has no weights, or such as no model can have (see `weights_of`).
    """
    weights = OrderedDict(weights_of(path, checkpoint))
    key = find_weights_key(checkpoint)
    versions = getattr(checkpoint[key] if key else checkpoint, '_metadata', None)
    if isinstance(versions, dict) and all(isinstance(version, dict) for version in versions.values()):
        weights._metadata = versions
    if key is None:
        return weights
    rest = {name: value for name, value in checkpoint.items() if name != key}
    if isinstance(rest.get('meta'), dict):
        rest['meta'] = {name: value for name, value in rest['meta'].items() if name != 'config'}
    return dict(rest, state_dict=weights)


def find_weights_key(checkpoint: object) -> str | None:
    """The key of `WEIGHTS_KEYS` under which a checkpoint has its weights; None for a bare state dict."""
    keys = _weights_keys(checkpoint)
    return keys[0] if keys else None


def _weights_keys(checkpoint: object) -> list[str]:
    """The keys of `WEIGHTS_KEYS` under which there are tensors, or nothing else than a dict under all of them."""
    found = [key for key in WEIGHTS_KEYS if isinstance(checkpoint, dict) and isinstance(checkpoint.get(key), dict)]
    with_tensors = [key for key in found if any(isinstance(value, Tensor) for value in checkpoint[key].values())]
    return with_tensors or found


def weights_of(path: str, checkpoint: object, values: bool = True) -> dict[str, Tensor]:
    """Return the weights of a checkpoint that was read from `path`, without a parallel wrapper's prefix `module.`.

    Args:
        path: The file, for messages.
        checkpoint: Its content.
        values: Whether the values are there to be checked (see `check_values`), and not shapes alone.

    Raises:
        InputError: It holds no weights, or such as no model can have.
    """
    keys = _weights_keys(checkpoint)
    if len(keys) > 1:
        note = f'{path} has weights as {" and ".join(keys)}: {keys[0]} are taken'
        logging.getLogger(__name__).warning(note)
    checkpoint = checkpoint[keys[0]] if keys else checkpoint
    if not isinstance(checkpoint, dict) or not any(isinstance(value, Tensor) for value in checkpoint.values()):
        raise InputError(
            f'{path} holds no weights: expected a state dict, bare or under "state_dict" or "model", '
            f'got {type(checkpoint).__name__}'
        )
    weights = {}
    for name, value in checkpoint.items():
        if not isinstance(value, Tensor):
            continue
        own = unwrapped_name(name) if isinstance(name, str) else ''
        if not own or own in weights:
            raise InputError(
                f'{path} is not a checkpoint of a model: its entry {name!r} is no name, or is there twice'
            )
        weights[own] = value
    if values:
        check_values(path, weights)
    return weights


def unwrapped_name(name: str) -> str:
    """The name of a weight without what wrappers of the model put before it."""
    while True:
        prefix = next((prefix for prefix in WRAPPERS if name.startswith(prefix)), None)
        if prefix is None:
            return name
        name = name.removeprefix(prefix)


def check_values(path: str, tensors: Mapping[str, Tensor]) -> None:
    """Raise an `InputError` if one of the tensors of a checkpoint is of no use as a weight.

    Those are tensors of other kinds than dense ones of real numbers, and those with a value that is NaN or infinite.

    Args:
        path: The file, for the message.
        tensors: Tensors by name.
    """
    not_finite = []
    for name, value in tensors.items():
        kind = _kind(value)
        if kind is not None:
            raise InputError(
                f'{path} cannot be used: its entry {name} is {kind}, expected a dense tensor of float16, bfloat16, '
                'float32 or float64'
            )
        if not is_finite_or_mask(value):
            not_finite.append(name)
    if not_finite:
        raise InputError(
            f'{path} cannot be used: {len(not_finite)} of its {len(tensors)} entries have values that are NaN or '
            f'infinite: {first_of(not_finite)}; take an earlier checkpoint'
        )


def is_finite(tensor: Tensor) -> bool:
    """Whether no value of a tensor is NaN or infinite."""
    # The sum takes a tenth of the time, and may overflow.
    return bool(tensor.sum().isfinite() or tensor.isfinite().all())


def is_finite_or_mask(tensor: Tensor) -> bool:
    """Whether a model may have a tensor: it is finite, or zeros and negative infinity alone.

    Attention adds the latter to scores that must not count.
    """
    return is_finite(tensor) or bool(tensor.is_floating_point() and (tensor.isneginf() | (tensor == 0)).all())


def _kind(value: Tensor) -> str | None:
    """What a tensor is that cannot be a weight, with its article; None for one that can."""
    if value.layout != torch.strided:
        return f'a sparse tensor ({value.layout})'
    if value.is_nested:
        return 'a nested tensor'
    if value.is_meta:
        return 'a tensor without values (meta)'
    if value.is_quantized or value.is_floating_point() and value.dtype.itemsize < 2:
        return f'of {value.dtype}'
    return None


def first_of(names: list[str]) -> str:
    """The first names of a list, for a message of one line."""
    return ', '.join(names[:3]) + (', ...' if len(names) > 3 else '')


def dataset_meta_of(path: str, checkpoint: object) -> dict:
    """Classes and palette of a checkpoint: `meta.dataset_meta` of mmengine, `CLASSES` and `PALETTE` of mmcv 1.

    Raises:
        InputError: The classes are no names, or the palette is no list of colours.
    """
    meta = checkpoint.get('meta') if isinstance(checkpoint, dict) else None
    meta = meta if isinstance(meta, dict) else {}
    found = {'classes': meta.get('CLASSES'), 'palette': meta.get('PALETTE')}
    known = meta.get('dataset_meta')
    if isinstance(known, dict):
        found.update({name.lower(): value for name, value in known.items() if isinstance(name, str)})
    found = {name: value for name, value in found.items() if value is not None}
    classes, palette = found.get('classes', ()), found.get('palette', ())
    if not isinstance(classes, (list, tuple)) or not all(isinstance(name, str) for name in classes):
        raise InputError(f'{path} cannot be used: the classes in its meta are no list of names')
    if not isinstance(palette, str) and not _are_colours(palette):  # mmdet has palettes by name
        raise InputError(f'{path} cannot be used: the palette in its meta is no list of R, G and B in 0 to 255')
    return found


def _are_colours(palette: object) -> bool:
    """Whether a palette is a list of three numbers each, in 0 to 255."""
    try:
        values = np.asarray(palette, dtype=float)
    except (TypeError, ValueError):
        return False
    return not values.size or values.ndim == 2 and values.shape[1] == 3 and ((0 <= values) & (values <= 255)).all()


def read_state_dict(path: str) -> dict[str, Tensor]:
    """Read the weights of a checkpoint: a file, a URL, or `hf://OWNER/NAME/FILE`.

    Accepts a bare state dict, or one under the first of `WEIGHTS_KEYS`, with or without the prefixes `module.` of a
    parallel wrapper and `_orig_mod.` of torch.compile.

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
