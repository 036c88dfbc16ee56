"""Compile the operators when bioattn_mm is installed; pyproject.toml says everything else.

    pip install --no-build-isolation .                  in an environment with torch, ninja and a C++ compiler
    FORCE_CUDA=1 pip install --no-build-isolation .     for CUDA too, on a machine without a GPU
    BIOATTN_MM_WITHOUT_OPS=1 pip install .              without operators: attention runs in PyTorch

Operators of one torch do not fit another, so they are compiled with the torch of the environment; pip's own build
environment, which `--no-build-isolation` switches off, has none. With a GPU and nvcc they are compiled for CUDA, too.
Where they do not compile, the installation ends with the reason.
"""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
WITHOUT_OPS = 'BIOATTN_MM_WITHOUT_OPS'


def compiled_operators() -> dict:
    """Arguments of `setup` that compile the operators; none if that was asked for, or if nothing is built."""
    if os.environ.get(WITHOUT_OPS) == '1' or {'sdist', 'egg_info'} & set(sys.argv):
        return {}
    try:
        from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension
    except ImportError as error:
        sys.exit(
            f'bioattn_mm: cannot compile the operators: {error}. Install torch first, then bioattn_mm with '
            f'pip install --no-build-isolation; or set {WITHOUT_OPS}=1 to install without them: attention then runs '
            f'in PyTorch, slower'
        )
    # The environment's ninja, also where the environment is not activated.
    os.environ['PATH'] = sysconfig.get_path('scripts') + os.pathsep + os.environ['PATH']
    csrc = ROOT / 'bioattn_mm' / 'ops' / 'csrc'
    sources = [csrc / 'operators.cpp', *csrc.glob('cpu/*.cpp')]
    # Floating-point exceptions and errno, which nothing here reads, would keep loops from being vectorised. Python
    # adds the flags that it was compiled with, often -g, and debug information takes half of the time.
    # Apple's compiler knows no OpenMP: there one thread computes.
    openmp = [] if sys.platform == 'darwin' else ['-fopenmp']
    flags = dict(cxx=['-O3', '-g0', *openmp, '-fno-math-errno', '-fno-trapping-math'])
    macros = []
    architectures = cuda_architectures()
    if architectures:
        os.environ['TORCH_CUDA_ARCH_LIST'] = architectures
        sources += csrc.glob('cuda/*.cu')
        # `--threads 0` compiles for all architectures at the same time.
        flags['nvcc'] = ['-O3', '--expt-relaxed-constexpr', '--expt-extended-lambda', '--threads', '0']
        macros = [('BIOATTN_WITH_CUDA', None), ('BIOATTN_CUDA_ARCHITECTURES', architectures.replace(' ', '_'))]
    library = (CUDAExtension if architectures else CppExtension)(
        'bioattn_mm.ops._library',
        sorted(str(path.relative_to(ROOT)) for path in sources),
        include_dirs=[str(csrc)],
        define_macros=macros,
        extra_compile_args=flags,
        extra_link_args=openmp,
        # It is loaded by torch.ops.load_library and does not use Python's ABI: one build fits every Python.
        py_limited_api=True,
    )
    # With ninja, files are compiled side by side, MAX_JOBS of them or as many as there are cores; else one by one.
    return dict(
        ext_modules=[library],
        cmdclass=dict(build_ext=BuildExtension.with_options(no_python_abi_suffix=True)),
        options=dict(bdist_wheel=dict(py_limited_api='cp310')),
    )


def cuda_architectures() -> str:
    """Compute capabilities to compile for, such as '8.0 9.0+PTX'; empty to compile without CUDA.

    TORCH_CUDA_ARCH_LIST names them; by default they are those from 7.0 to 9.0 that the toolkit supports. On a machine
    without a GPU nothing is compiled for CUDA unless FORCE_CUDA=1, and then it must compile.
    """
    import torch
    from torch.utils.cpp_extension import CUDA_HOME

    forced = os.environ.get('FORCE_CUDA') == '1'
    nvcc = Path(CUDA_HOME or '') / 'bin' / 'nvcc'
    if not torch.cuda.is_available() and not forced:
        return ''
    release, reason = '', ''
    if nvcc.is_file():
        release = re.search(r'release (\d+)', subprocess.check_output([nvcc, '--version'], text=True))[1]
    if torch.version.cuda is None:
        reason = 'torch is built for the CPU alone'
    elif not release:
        reason = f'there is no {nvcc}; CUDA_HOME names the folder of the CUDA toolkit'
    elif release != torch.version.cuda.split('.')[0]:
        reason = f'nvcc is of CUDA {release}, torch of {torch.version.cuda}'
    if reason and forced:
        sys.exit(f'bioattn_mm: FORCE_CUDA=1, but the operators cannot be compiled for CUDA: {reason}')
    if reason:
        # Seen with `pip install -v`; `python -m bioattn_mm.ops` says afterwards that there is nothing for CUDA.
        print(f'bioattn_mm: operators without CUDA: {reason}')
        return ''
    if os.environ.get('TORCH_CUDA_ARCH_LIST'):
        return os.environ['TORCH_CUDA_ARCH_LIST'].replace(';', ' ')
    known = subprocess.check_output([nvcc, '--list-gpu-arch'], text=True).split()
    wanted = ('7.0', '7.5', '8.0', '8.6', '8.9', '9.0')
    names = [name for name in wanted if f'compute_{name.replace(".", "")}' in known]
    return f'{" ".join(names)}+PTX'


setup(**compiled_operators())
