"""The CUDA kernels' own source, compiled for the CPU: every thread is a fiber (cuda_runtime.h)."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import include_paths

HERE = Path(__file__).parent
CSRC = Path(__file__).parents[3] / 'bioattn_mm' / 'ops' / 'csrc'


def load_cuda_on_cpu(sources: Sequence[Path], out: Path) -> None:
    """Compile CUDA and C++ sources into the shared library `out` and load it; without a compiler, skip the test.

    Headers of this folder take the place of CUDA's, and of those of `csrc` that have the same name.
    """
    compiler = os.environ.get('CXX', 'g++')
    if not shutil.which(compiler):
        pytest.skip(f'there is no {compiler} to compile the CUDA kernels for the CPU')
    libraries, abi = Path(torch.__file__).parent / 'lib', int(torch.compiled_with_cxx11_abi())
    command = [
        compiler,
        *('-std=c++17', '-O1', '-fPIC', '-shared', f'-D_GLIBCXX_USE_CXX11_ABI={abi}'),
        *(f'-I{folder}' for folder in (HERE, CSRC)),
        *(f'-isystem{folder}' for folder in include_paths()),
        *('-x', 'c++', *map(str, sources), '-x', 'none'),
        *(f'-L{libraries}', '-lc10', '-ltorch_cpu', '-o', str(out)),
    ]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(f'{" ".join(command)}\n{process.stderr}')
    torch.ops.load_library(out)
