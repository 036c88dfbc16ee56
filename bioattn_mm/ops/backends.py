"""Which implementation of an operator runs: that of the compiled library, if it was built, or PyTorch's."""

import os
import warnings
from pathlib import Path

import torch

ENVIRONMENT_VARIABLE = 'BIOATTN_MM_BACKEND'
LIBRARY = Path(__file__).with_name('_library.so')
HOW_TO_BUILD = (
    'to build them: pip install --no-build-isolation --no-deps --force-reinstall bioattn_mm, or -e . in a checkout '
    '(with torch, ninja and a C++ compiler; for CUDA with nvcc too, and with FORCE_CUDA=1 on a machine without a GPU)'
)


def _load_library() -> str | None:
    """Load the compiled operators; without them, warn once, go on in PyTorch, and return the reason."""
    if not LIBRARY.is_file():
        reason = 'bioattn_mm was installed without its compiled operators'
    else:
        try:
            torch.ops.load_library(LIBRARY)
            return None
        except OSError as error:
            reason = f'the compiled operators do not fit torch {torch.__version__} ({str(error).splitlines()[0]})'
    warnings.warn(f'{reason}: attention runs in PyTorch, slower; {HOW_TO_BUILD}', stacklevel=2)
    return reason


# Why there are no compiled operators; None where there are.
WHY_NOT_LOADED = _load_library()
LIBRARY_IS_LOADED = WHY_NOT_LOADED is None
# Compute capabilities that the CUDA operators were compiled for, such as '8.0 9.0+PTX'; empty without CUDA.
CUDA_ARCHITECTURES = torch.ops.bioattn_mm.cuda_architectures() if LIBRARY_IS_LOADED else ''


def available_backends(device: torch.device) -> list[str]:
    """Names of the backends that run on `device`, the fastest first."""
    compiled = dict(cpu=LIBRARY_IS_LOADED, cuda=bool(CUDA_ARCHITECTURES))
    return [device.type, 'reference'] if compiled.get(device.type) else ['reference']


def choose_backend(device: torch.device, backend: str | None) -> str:
    """The backend asked for, by argument or environment variable, or else the fastest for the device.

    Raises:
        ValueError: The backend asked for does not exist, was not built, or does not run on the device.
    """
    available = available_backends(device)
    backend = backend or os.environ.get(ENVIRONMENT_VARIABLE)
    if not backend:
        return available[0]
    if backend not in available:
        compiled = CUDA_ARCHITECTURES if device.type == 'cuda' else LIBRARY_IS_LOADED
        hint = '' if compiled else f'; the operators were not compiled for it, {HOW_TO_BUILD}'
        raise ValueError(f'no backend {backend!r} for {device.type}: expected one of {", ".join(available)}{hint}')
    return backend
