"""Checkpoint files: reading their weights, and writing them."""

import pickle
from pathlib import Path

import torch
from mmengine.runner.checkpoint import CheckpointLoader
from torch import Tensor

from ..errors import InputError
from ..files import atomic_write
from .unpickling import HOLDS_CODE, code_refused, refused_class

# Keys of a checkpoint under which its weights may be, in this order; without any it is a bare state dict.
WEIGHTS_KEYS = ('state_dict', 'model', 'model_ema')


def read_checkpoint(path: str) -> object:
    """Read a checkpoint file or URL, refusing code in its pickle (see `unpickling`).

    Raises:
        InputError: The file is missing, cannot be read, or holds a class that mmengine does not write.
    """
    is_remote = '://' in path
    if not is_remote and not Path(path).is_file():
        raise InputError(f'checkpoint not found: {path}')
    try:
        with code_refused():
            if is_remote:
                return CheckpointLoader.load_checkpoint(path, map_location='cpu', logger='silent')
            # None lets --trust-checkpoint decide.
            return torch.load(path, map_location='cpu', weights_only=None)
    except Exception as error:
        refused = refused_class(error)
        if refused:
            raise InputError(f'{path} {HOLDS_CODE.format(refused)}') from error
        reason = str(error).strip().splitlines() or [type(error).__name__]
        if isinstance(error, (pickle.UnpicklingError, LookupError, ValueError, EOFError)):
            reason = ['it is not what torch.save writes']
        hint = '; download it by hand and name the file instead' if is_remote else ''
        raise InputError(f'cannot read the checkpoint {path}: {reason[0]}{hint}') from error


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


def read_state_dict(path: str) -> dict[str, Tensor]:
    """Read the weights of a checkpoint file or URL.

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
