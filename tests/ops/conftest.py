"""What the operator tests share."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bioattn_mm.ops.backends import LIBRARY_IS_LOADED

from ..needs import needs
from .cuda_on_cpu import CUDAOnCPU

needs_library, needs_cuda = needs('operators'), needs('CUDA operators')
# Backends as parameters of a test; the CUDA kernels' source is also compiled for the CPU.
ON_CUDA = ['cuda on cpu', pytest.param('cuda', marks=needs_cuda)]
BACKENDS = ['reference', pytest.param('cpu', marks=needs_library), *ON_CUDA]
# The instruction set that the CPU operators use, and all up to it, the simplest first. Those above are not for tests:
# who lowers the one in use may have lowered oneDNN's, too.
IN_USE = torch.ops.bioattn_mm.cpu_capability() if LIBRARY_IS_LOADED else 'none'
CAPABILITIES = torch.ops.bioattn_mm.cpu_capabilities() if LIBRARY_IS_LOADED else []
CAPABILITIES = CAPABILITIES[: CAPABILITIES.index(IN_USE) + 1] if LIBRARY_IS_LOADED else []
OF_BFLOAT16 = ('avx512_bf16', 'amx')


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs the emulation of CUDA is slow, as its kernels are compiled for a minute."""
    for item in items:
        if 'emulation_folder' in item.fixturenames or 'on cpu' in item.name:
            item.add_marker('slow')


@contextmanager
def capability(name: str) -> Iterator[None]:
    """Within it the CPU operators run with an instruction set of `CAPABILITIES`."""
    torch.ops.bioattn_mm.set_cpu_capability(name)
    try:
        yield
    finally:
        torch.ops.bioattn_mm.set_cpu_capability(IN_USE)


def check_any_number_of_threads(run: Callable[[], list[torch.Tensor]]) -> None:
    """The results of `run` are the same to the last bit with one, two and three threads."""
    results, threads = [], torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            results.append(run())
    finally:
        torch.set_num_threads(threads)
    for others in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(results[0], others, strict=True))


class Calls(TorchDispatchMode):
    """Keeps the calls of compiled operators, those of backward passes among them: operators and arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # noqa: ANN001
        if function.namespace == 'bioattn_mm':
            self.kept.append((function, args))
        return function(*args, **(kwargs or {}))


@pytest.fixture(scope='session')
def emulation_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what runs on the emulation of CUDA is compiled, once for all parallel workers."""
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if 'PYTEST_XDIST_WORKER' in os.environ else folder) / 'emulation'


@pytest.fixture
def cuda_on_cpu(emulation_folder: Path, monkeypatch: pytest.MonkeyPatch) -> CUDAOnCPU:
    """The CUDA kernels for compute capability 8.0 and later, on the CPU, with backend='cuda'."""
    return CUDAOnCPU('kernels_on_cpu', emulation_folder).stand_in(monkeypatch)


@pytest.fixture
def turing_on_cpu(emulation_folder: Path, monkeypatch: pytest.MonkeyPatch) -> CUDAOnCPU:
    """Those for compute capability 7.5: tensor cores for float16 alone, and ordinary copies."""
    return CUDAOnCPU('turing_on_cpu', emulation_folder, capability=750).stand_in(monkeypatch)


class Place(NamedTuple):
    """Where operators run: their backend, the device of their tensors, and what stands for a GPU on the CPU."""

    backend: str
    device: str = 'cpu'
    emulation: CUDAOnCPU | None = None


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest) -> Place:
    """Every backend, and the CUDA kernels' source on the CPU."""
    return place_of(request)


def place_of(request: pytest.FixtureRequest) -> Place:
    if 'on cpu' in request.param:
        return Place('cuda', emulation=request.getfixturevalue(request.param.replace(' ', '_')))
    return Place(request.param, 'cuda' if request.param == 'cuda' else 'cpu')


@pytest.fixture(params=['reference', pytest.param('cpu', marks=needs_library)])
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend that runs on the CPU."""
    return request.param
