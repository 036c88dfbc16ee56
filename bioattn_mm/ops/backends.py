"""Which implementation of an operator runs: that of the compiled library, if it was built, or PyTorch's."""

import functools
import os
import re
import sys
import warnings
from pathlib import Path

import torch

from ..version import __version__
from .portable import is_portable
from .registration import OPERATORS, register

ENVIRONMENT_VARIABLE = 'BIOATTN_MM_BACKEND'
LIBRARY = Path(__file__).with_name('_cpu.so')
CUDA_LIBRARY = Path(__file__).with_name('_cuda.so')
HOW_TO_BUILD = (
    'to build them: pip install --no-build-isolation --no-deps --force-reinstall bioattn_mm, or -e . in a checkout '
    '(with torch, ninja and a C++ compiler; for CUDA with nvcc too, and with FORCE_CUDA=1 on a machine without a GPU)'
)


def _load_library() -> str | None:
    """Load the compiled operators; without them, warn, and return the reason."""
    if not LIBRARY.is_file():
        reason = 'bioattn_mm was installed without its compiled operators'
    else:
        try:
            torch.ops.load_library(LIBRARY)
            if torch.ops.bioattn_mm.version() == __version__:
                return None
            reason = (
                f'the compiled operators are those of bioattn_mm {torch.ops.bioattn_mm.version()}, another version '
                f'than {__version__}'
            )
        except (OSError, AttributeError) as error:
            reason = f'the compiled operators do not fit torch {torch.__version__} ({str(error).splitlines()[0]})'
    warnings.warn(f'{reason}: attention runs in PyTorch, slower; {HOW_TO_BUILD}', stacklevel=2)
    return reason


def _load_cuda_library() -> str | None:
    """The same for those on CUDA, which a torch without CUDA cannot open; silent, because most machines need none."""
    if WHY_NOT_LOADED or not CUDA_LIBRARY.is_file():
        return WHY_NOT_LOADED or 'the operators were compiled without CUDA'
    if torch.version.cuda is None:
        return f'torch {torch.__version__} is built for the CPU alone'
    try:
        torch.ops.load_library(CUDA_LIBRARY)
    except OSError as error:
        return f'the operators for CUDA do not fit torch {torch.__version__} ({str(error).splitlines()[0]})'
    return None


# Why there are no compiled operators; None where there are.
WHY_NOT_LOADED = _load_library()
LIBRARY_IS_LOADED = WHY_NOT_LOADED is None
WHY_NOT_ON_CUDA = _load_cuda_library()
for _name in OPERATORS if LIBRARY_IS_LOADED else ():
    register(_name)
# Compute capabilities that the CUDA operators were compiled for, such as '8.0 9.0+PTX'; empty without CUDA.
CUDA_ARCHITECTURES = '' if WHY_NOT_ON_CUDA else torch.ops.bioattn_mm.cuda_architectures()
# The release of CUDA that they were compiled with, and the last one that the driver runs, such as 13000 and 12080.
CUDA_RELEASES = (0, 0) if WHY_NOT_ON_CUDA else torch.ops.bioattn_mm.cuda_releases()


def capabilities_of(architectures: str) -> list[tuple[int, int]]:
    """Ranges of compute capabilities, as 10 * major + minor, that operators run on which were compiled for a list.

    Code for 8.0 runs on 8.0 to 8.9, with PTX (8.0+PTX) on all from 8.0 on, and code for 9.0a on 9.0 alone. Other
    names, such as Hopper, are taken to mean everything.
    """
    ranges = []
    for name in architectures.split():
        match = re.fullmatch(r'(\d+)\.(\d)([af]?)(\+PTX)?', name)
        if not match:
            return [(0, sys.maxsize)]
        major, minor, kind, ptx = match.groups()
        first = 10 * int(major) + int(minor)
        last = first if kind == 'a' else sys.maxsize if ptx and not kind else 10 * int(major) + 9
        ranges.append((first, last))
    return ranges


CUDA_CAPABILITIES = capabilities_of(CUDA_ARCHITECTURES)


def why_not_compiled(device: torch.device) -> str | None:
    """Why no compiled operators run on a device; None where they do."""
    if device.type == 'cpu':
        return WHY_NOT_LOADED
    if device.type != 'cuda':
        return f'there are no compiled operators for {device.type}'
    if not CUDA_ARCHITECTURES:
        return WHY_NOT_ON_CUDA
    if torch.cuda.is_available():  # else the device is one of fake tensors, or this is a question about any GPU
        gpu = torch.cuda.get_device_properties(device)
        capability = 10 * gpu.major + gpu.minor
        if not any(first <= capability <= last for first, last in CUDA_CAPABILITIES):
            return (
                f'the operators were compiled for compute capability {CUDA_ARCHITECTURES}, and {gpu.name} has '
                f'{gpu.major}.{gpu.minor}'
            )
        compiled, driver = CUDA_RELEASES
        # A driver runs code for its GPU of all releases of its major version, and compiles PTX of its own at most.
        fitting = [first for first, last in CUDA_CAPABILITIES if first <= capability <= last]
        has_code = any(first == 0 or first // 10 == capability // 10 for first in fitting)
        if driver < (compiled // 1000 * 1000 if has_code else compiled):
            return (
                f'the operators were compiled with CUDA {compiled // 1000}.{compiled % 1000 // 10}, and the driver '
                f'runs CUDA {driver // 1000}.{driver % 1000 // 10} at most'
            )
    return None


def available_backends(device: torch.device) -> list[str]:
    """Names of the backends that run on `device`, the fastest first."""
    return ['reference'] if why_not_compiled(device) else [device.type, 'reference']


def choose_backend(device: torch.device, backend: str | None, unsupported: str | None = None) -> str:
    """The backend asked for, or else the fastest that supports the arguments; within `portable_formulas` PyTorch's.

    A warning says, once for each reason, that a GPU runs the formulas unasked.

    Args:
        device: Where the tensors are.
        backend: The operator's argument of that name, before the environment variable BIOATTN_MM_BACKEND.
        unsupported: Why the compiled operator does not take its other arguments, if it does not.

    Raises:
        ValueError: The backend asked for does not exist, was not built, or does not run on the device or with the
            arguments.
    """
    if is_portable():
        return 'reference'
    missing = why_not_compiled(device)
    # The variable is not meant for operators that the CPU lacks.
    asked = backend or (None if unsupported and device.type == 'cpu' else os.environ.get(ENVIRONMENT_VARIABLE))
    if not asked:
        if device.type == 'cuda' and (missing or unsupported) and not torch.compiler.is_compiling():
            _warn_once(f'{missing}; {HOW_TO_BUILD}' if missing else unsupported)
        return 'reference' if missing or unsupported else device.type
    available = available_backends(device)
    if asked not in available:
        hint = f'; {missing}, {HOW_TO_BUILD}' if missing else ''
        raise ValueError(f'no backend {asked!r} for {device.type}: expected one of {", ".join(available)}{hint}')
    if unsupported and asked != 'reference':
        raise ValueError(f'the backend {asked!r} cannot run: {unsupported}; the backend reference can')
    return asked


@functools.cache
def _warn_once(reason: str) -> None:
    warnings.warn(f'attention on this GPU runs in PyTorch, slower: {reason}', stacklevel=3)
