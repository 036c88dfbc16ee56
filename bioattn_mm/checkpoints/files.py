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

import torch
from mmengine.runner.checkpoint import CheckpointLoader
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..errors import InputError, first_line
from ..runtime.files import atomic_path, atomic_write
from .sharded import is_sharded, is_whole, read_sharded
from .unpickling import HOLDS_CODE, code_refused, refused_class

# Keys of a checkpoint under which its weights may be, in this order; without any it is a bare state dict.
# The averaged weights (EMA) are taken where there are some: they are the ones that were tested.
WEIGHTS_KEYS = ('state_dict_ema', 'model_ema', 'ema', 'state_dict', 'model')
# Wrappers put these before the names, in any order: those of several processes the first, torch.compile the second.
WRAPPERS = re.compile(r'^(module\.|_orig_mod\.)+')
HUB, SAFETENSORS = 'hf://', '.safetensors'
BY_HAND = 'download it by hand and name the file instead; trainings also start with --from-scratch'


def read_checkpoint(path: str, map_location: str | torch.device | None = 'cpu') -> object:
    """Read a checkpoint, refusing code in its pickle (see `unpickling`).

    Args:
        path: A file, of pickles or safetensors, a URL, `hf://OWNER/NAME/FILE` (see `fetch`), or the folder of a
            training with FSDP.
        map_location: Device of the tensors, as in `torch.load`.

    Raises:
        InputError: The file is missing, cannot be read, or holds a class that mmengine does not write.
    """
    file = fetch(path)
    is_remote = '://' in file
    if not is_remote and not is_whole(file):
        if Path(file).is_dir():
            raise InputError(f'{path} is a folder and no whole checkpoint of a training with FSDP')
        raise InputError(f'checkpoint not found: {path}')
    is_safetensors = file.endswith(SAFETENSORS) and not is_remote
    try:
        with code_refused():
            if is_remote:
                return CheckpointLoader.load_checkpoint(file, map_location=map_location, logger='silent')
            if is_sharded(file):
                return read_sharded(file, map_location or 'cpu')
            if is_safetensors:
                return load_file(file, device=str(map_location or 'cpu'))
            # None lets --trust-checkpoint decide.
            return torch.load(file, map_location=map_location, weights_only=None)
    except InputError:
        raise
    except Exception as error:
        if refused := refused_class(error):
            raise InputError(f'{path} {HOLDS_CODE.format(refused)}') from error
        errors_of_content = (pickle.UnpicklingError, LookupError, ValueError, EOFError, SafetensorError)
        writer = 'safetensors' if is_safetensors else 'torch.save'
        reason = f'it is not what {writer} writes' if isinstance(error, errors_of_content) else first_line(error)
        hint = f'; {BY_HAND}' if is_remote else ''
        raise InputError(f'cannot read the checkpoint {path}: {reason}{hint}') from error


def fetch(path: str) -> str:
    """The local copy of a file on the Hugging Face Hub; any other path or URL as it is.

    huggingface_hub downloads the file at first use and keeps it. Its variables of the environment hold, such as
    HF_HOME for the place, HF_TOKEN for private repositories, HF_ENDPOINT for a mirror and HF_HUB_OFFLINE.

    Args:
        path: `hf://OWNER/NAME/FILE`, where FILE may lie in folders, or `hf://OWNER/NAME@REVISION/FILE` with a branch,
            a tag or a commit, whose slashes are written %2F.

    Raises:
        InputError: There is no such file, or it cannot be downloaded.
    """
    if not path.startswith(HUB):
        return path
    parts = re.fullmatch(r'hf://([^/@]+/[^/@]+)(?:@([^/]+))?/(.+)', path)
    if parts is None:
        raise InputError(f'expected hf://OWNER/NAME/FILE or hf://OWNER/NAME@REVISION/FILE, got {path}')
    from huggingface_hub import errors, hf_hub_download  # imported here, because it takes a while

    repository, revision, file = parts.groups()
    revision = unquote(revision) if revision else None
    out_of_reach = f'the hub cannot be reached, and the file is not in the cache; {BY_HAND}'
    reasons = {  # subclasses before their base classes
        errors.LocalEntryNotFoundError: out_of_reach,
        errors.OfflineModeIsEnabled: out_of_reach,
        errors.GatedRepoError: f'access to {repository} must be asked for on its page, then `hf auth login`',
        errors.RepositoryNotFoundError: f'there is no repository {repository}, or it is private and needs '
        '`hf auth login`',
        errors.RevisionNotFoundError: f'{repository} has no revision {revision}',
        errors.EntryNotFoundError: f'{repository} has no file {file}',
    }
    try:
        return hf_hub_download(repository, file, revision=revision)
    except Exception as error:
        reason = next((text for kind, text in reasons.items() if isinstance(error, kind)), first_line(error))
        raise InputError(f'cannot fetch {path}: {reason}') from error


@contextmanager
def mmengine_reads_all() -> Iterator[None]:
    """Context in which mmengine reads what `read_checkpoint` reads, and uses no weights but those of `weights_of`.

    That is in `load_from` of a Runner, `init_cfg` of any module, and the inferencers of mmdet and mmseg.
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
    if '://' in filename and not filename.startswith(HUB):  # mmengine takes a URL it does not know for a file
        raise InputError(f'cannot read the checkpoint {filename}: mmengine knows no such URLs; {BY_HAND}')
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
    """
    weights = OrderedDict(weights_of(path, checkpoint))
    key = next(iter(_weights_keys(checkpoint)), None)
    versions = getattr(checkpoint[key] if key else checkpoint, '_metadata', None)
    if versions is not None:
        weights._metadata = versions
    if key is None:
        return weights
    rest = {name: value for name, value in checkpoint.items() if name != key}
    if isinstance(rest.get('meta'), dict):
        rest['meta'] = {name: value for name, value in rest['meta'].items() if name != 'config'}
    return dict(rest, state_dict=weights)


def _weights_keys(checkpoint: object) -> list[str]:
    """The keys of `WEIGHTS_KEYS` under which there are tensors, or nothing else than a dict under all of them."""
    found = [key for key in WEIGHTS_KEYS if isinstance(checkpoint, dict) and isinstance(checkpoint.get(key), dict)]
    with_tensors = [key for key in found if any(isinstance(value, Tensor) for value in checkpoint[key].values())]
    return with_tensors or found


def weights_of(path: str, checkpoint: object, values: bool = True) -> dict[str, Tensor]:
    """Return the weights of a checkpoint that was read from `path`, without what wrappers put before their names.

    Without `values` these are not checked (see `check_values`): there are shapes alone.

    Raises:
        InputError: It holds no weights, or such as no model can have.
    """
    keys = _weights_keys(checkpoint)
    if len(keys) > 1:
        logging.getLogger(__name__).warning(f'{path} has weights as {" and ".join(keys)}: {keys[0]} are taken')
    entries = checkpoint[keys[0]] if keys else checkpoint
    items = entries.items() if isinstance(entries, dict) else ()
    weights = {WRAPPERS.sub('', str(name)): value for name, value in items if isinstance(value, Tensor)}
    if not weights:
        raise InputError(
            f'{path} holds no weights: expected a state dict, bare or under "state_dict" or "model", '
            f'got {type(entries).__name__}'
        )
    if values:
        check_values(path, weights)
    return weights


def check_values(path: str, tensors: Mapping[str, Tensor]) -> None:
    """Raise an `InputError` if one of the tensors that were read from `path` has a value that is NaN or infinite."""
    not_finite = [name for name, value in tensors.items() if not is_finite_or_mask(value)]
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
    """Whether a tensor is finite, or zeros and negative infinity alone, as masks of attention are."""
    return is_finite(tensor) or bool(tensor.is_floating_point() and (tensor.isneginf() | (tensor == 0)).all())


def first_of(names: list[str]) -> str:
    """The first names of a list, for a message of one line."""
    return ', '.join(names[:3]) + (', ...' if len(names) > 3 else '')


def dataset_meta_of(checkpoint: object) -> dict:
    """Classes and palette of a checkpoint: `meta.dataset_meta` of mmengine, `CLASSES` and `PALETTE` of mmcv 1."""
    meta = checkpoint.get('meta') if isinstance(checkpoint, dict) else None
    meta = meta if isinstance(meta, dict) else {}
    found = {'classes': meta.get('CLASSES'), 'palette': meta.get('PALETTE')}
    found |= {name.lower(): value for name, value in (meta.get('dataset_meta') or {}).items()}
    return {name: value for name, value in found.items() if value is not None}


def read_state_dict(path: str) -> dict[str, Tensor]:
    """Read the weights of a checkpoint: `weights_of` what `read_checkpoint` reads."""
    return weights_of(path, read_checkpoint(path))


def write_checkpoint(checkpoint: dict, path: Path) -> None:
    """Write a checkpoint, not of a training, atomically: an interrupted write leaves an earlier file as it was."""
    with atomic_write(path) as file:
        torch.save(checkpoint, file)


def write_safetensors(weights: dict[str, Tensor], path: Path) -> None:
    """Write weights atomically as a safetensors file, which has no place for anything else."""
    with atomic_path(path) as partial:
        # Two names must not share memory, as those of a layer that is used twice do.
        save_file({name: value.contiguous().clone() for name, value in weights.items()}, partial, dict(format='pt'))
