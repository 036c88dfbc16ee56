"""Compile the operators when bioattn_mm is installed; pyproject.toml says everything else.

    pip install --no-build-isolation .                  in an environment with torch, ninja and a C++ compiler
    FORCE_CUDA=1 pip install --no-build-isolation .     for CUDA too, on a machine without a GPU
    BIOATTN_MM_WITHOUT_OPS=1 pip install .              without operators: attention runs in PyTorch

They are compiled with the headers of the torch of the environment, 2.11 or later, and run with every other; the build
environment that pip makes without `--no-build-isolation` has none. With a GPU and nvcc they are compiled for CUDA,
too. Where there is no compiler, or they do not compile, the package is installed without them, and says so: with
FORCE_CUDA=1, and in a checkout (`-e .`), the installation ends with the reason. `make wheel` makes the wheel for
others.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import setuptools
from setuptools import Extension, setup

if int(setuptools.__version__.split('.')[0]) < 77:  # which pip does not see with --no-build-isolation
    sys.exit(f"bioattn_mm: setuptools is {setuptools.__version__}: pip install 'setuptools>=77' wheel")
from setuptools.command.bdist_wheel import bdist_wheel

ROOT = Path(__file__).parent
CSRC = ROOT / 'bioattn_mm' / 'ops' / 'csrc'
# The first torch whose stable ABI has `parallel_for`, lists and strings.
LOWEST_TORCH = '2.10'
WITHOUT_OPS = 'BIOATTN_MM_WITHOUT_OPS'
# That of manylinux_2_28, which the wheel must run with.
OLDEST_GLIBC = (2, 28)
OLD_GLIBC = (':librt.so.1', ':libdl.so.2', ':libpthread.so.0')


def compiled_operators() -> dict:
    """Arguments of `setup` that compile the operators; none if that was asked for, or if nothing is built."""
    if os.environ.get(WITHOUT_OPS) == '1' or {'sdist', 'egg_info'} & set(sys.argv):
        return {}
    if sys.platform != 'linux':
        return without_operators(f'they are compiled on Linux alone, and this is {sys.platform}')
    compiler = os.environ.get('CXX', 'c++').split()[-1]
    if shutil.which(compiler) is None:
        return without_operators(f'there is no C++ compiler {compiler}')
    try:
        from torch.utils.cpp_extension import BuildExtension
    except ImportError as error:
        sys.exit(
            f'bioattn_mm: cannot compile the operators: {error}. Install torch first, then bioattn_mm with '
            f'pip install --no-build-isolation; or set {WITHOUT_OPS}=1 to install without them: attention then runs '
            f'in PyTorch, slower'
        )

    class OrWithout(BuildExtension):
        """Goes on without operators that do not compile, but for those who work on them."""

        def finalize_options(self) -> None:
            super().finalize_options()
            if self.inplace:  # in a checkout, where only what changed is compiled again
                self.build_temp = str(ROOT / 'build' / 'inplace')

        def build_extensions(self) -> None:
            try:
                super().build_extensions()
            except Exception as error:
                if self.inplace or self.editable_mode:
                    raise
                self.extensions = []
                without_operators(str(error).strip().splitlines()[0])

    # The environment's ninja, also where the environment is not activated.
    os.environ['PATH'] = sysconfig.get_path('scripts') + os.pathsep + os.environ['PATH']
    libraries = [library('_cpu', ['operators.cpp', 'old_linux.cpp', *CSRC.glob('cpu/*.cpp')])]
    architectures = cuda_architectures()
    if architectures:
        os.environ['TORCH_CUDA_ARCH_LIST'] = architectures
        libraries.append(
            library('_cuda', ['old_linux.cpp', *CSRC.glob('cuda/*.cpp'), *CSRC.glob('cuda/*.cu')], architectures)
        )
    # With ninja, files are compiled side by side, MAX_JOBS of them or as many as there are cores; else one by one.
    return dict(
        ext_modules=libraries,
        cmdclass=dict(build_ext=OrWithout.with_options(no_python_abi_suffix=True), bdist_wheel=AnyPython),
    )


def without_operators(reason: str) -> dict:
    """Say that the package is installed without operators, which `import bioattn_mm.ops` says again."""
    if os.environ.get('FORCE_CUDA') == '1':
        sys.exit(f'bioattn_mm: FORCE_CUDA=1, but the operators cannot be compiled: {reason}')
    print(f'bioattn_mm: installed without compiled operators, attention runs in PyTorch, slower: {reason}')
    return {}


def library(name: str, sources: list, architectures: str = '') -> Extension:
    """A library of operators; for CUDA, if it names compute capabilities.

    It uses what every torch from `LOWEST_TORCH` on has (PyTorch's stable ABI), and nothing of Python: one build fits
    all of both.
    """
    from torch.utils.cpp_extension import include_paths, library_paths

    version = re.search(r"'(.*)'", (ROOT / 'bioattn_mm' / 'version.py').read_text())[1]
    major, minor = map(int, LOWEST_TORCH.split('.'))
    target = [f'-DTORCH_TARGET_VERSION={major << 56 | minor << 48:#x}']
    # Floating-point exceptions and errno, which nothing here reads, would keep loops from being vectorised. Python
    # adds the flags that it was compiled with, often -g, and debug information takes half of the time. Of OpenMP only
    # `simd` is used, which needs no library.
    cxx = [
        '-O3',
        '-g0',
        '-std=c++17',
        '-fvisibility=hidden',
        '-fopenmp-simd',
        '-fno-math-errno',
        '-fno-trapping-math',
        *target,
    ]
    # `--threads 0` compiles for all architectures at the same time.
    nvcc = ['-O3', '-std=c++17', '--expt-relaxed-constexpr', '--expt-extended-lambda', '--threads', '0', *target]
    device = 'cuda' if architectures else 'cpu'
    return Extension(
        f'bioattn_mm.ops.{name}',
        sorted(str(path.relative_to(ROOT)) for path in (CSRC / source for source in sources)),
        language='c++',
        include_dirs=[str(CSRC), *include_paths(device)],
        library_dirs=library_paths(device),
        # CUDA's runtime is a part of the library, so that any driver of its release runs it, whatever torch brings.
        # It calls functions that an old glibc has in libraries of their own.
        libraries=['torch_cpu', *(['torch_cuda', *OLD_GLIBC] if architectures else [])],
        extra_objects=[cuda_runtime(library_paths(device))] if architectures else [],
        extra_link_args=['-Wl,--no-as-needed'] if architectures else [],
        define_macros=[
            ('BIOATTN_VERSION', f'"{version}"'),
            *([('USE_CUDA', None), ('BIOATTN_CUDA_ARCHITECTURES', f'"{architectures}"')] if architectures else []),
        ],
        extra_compile_args=dict(cxx=cxx, nvcc=nvcc),
        py_limited_api=True,
    )


def cuda_runtime(folders: list[str]) -> str:
    """CUDA's static runtime, as a copy that runs with `OLDEST_GLIBC` where this machine's glibc is younger.

    A linker takes the default version of a function, such as dlopen@GLIBC_2.34, though the old ones are there as
    well; the copy names them. For what the operators call themselves, csrc/old_linux.h does that.
    """
    runtime = next(path for folder in folders if (path := Path(folder) / 'libcudart_static.a').is_file())
    compiler = os.environ.get('CC', 'cc').split()[-1]
    glibc = subprocess.check_output([compiler, '-print-file-name=libc.so.6'], text=True).strip()
    symbols = subprocess.check_output(['nm', '-D', '--defined-only', glibc], text=True)
    newer, old = set(), {}
    for name, at, version in re.findall(r' (\w+)(@@?)GLIBC_([\d.]+)$', symbols, re.MULTILINE):
        numbers = tuple(map(int, version.split('.')))
        if numbers <= OLDEST_GLIBC:
            old[name] = max(old.get(name, ()), numbers)
        elif at == '@@':
            newer.add(name)
    lines = [f'{name} {name}@GLIBC_{".".join(map(str, old[name]))}\n' for name in sorted(newer & set(old))]
    renamed = ROOT / 'build' / 'glibc_symbols.txt'
    renamed.parent.mkdir(exist_ok=True)
    renamed.write_text(''.join(lines))
    copy = renamed.with_name(runtime.name)
    subprocess.check_call(['objcopy', f'--redefine-syms={renamed}', runtime, copy])
    return str(copy)


class AnyPython(bdist_wheel):
    """Names the wheel for any Python 3: its libraries are none of Python's modules."""

    def get_tag(self) -> tuple[str, str, str]:
        return 'py3', 'none', super().get_tag()[2]


def cuda_architectures() -> str:
    """Compute capabilities to compile for, such as '8.0 9.0+PTX'; empty to compile without CUDA.

    TORCH_CUDA_ARCH_LIST names them; by default they are those from 7.0 to 12.0 that the toolkit supports, and PTX of
    the highest up to 9.0 for all others. On a machine without a GPU nothing is compiled for CUDA unless FORCE_CUDA=1,
    and then it must compile.
    """
    import torch
    from torch.utils.cpp_extension import CUDA_HOME

    forced = os.environ.get('FORCE_CUDA') == '1'
    nvcc = Path(CUDA_HOME or '') / 'bin' / 'nvcc'
    if not torch.cuda.is_available() and not forced:
        return ''
    reason = ''
    if torch.version.cuda is None:
        reason = 'torch is built for the CPU alone'
    elif not nvcc.is_file():
        reason = f'there is no {nvcc}; CUDA_HOME names the folder of the CUDA toolkit'
    if reason and forced:
        sys.exit(f'bioattn_mm: FORCE_CUDA=1, but the operators cannot be compiled for CUDA: {reason}')
    if reason:
        # Seen with `pip install -v`; `python -m bioattn_mm.ops` says afterwards that there is nothing for CUDA.
        print(f'bioattn_mm: operators without CUDA: {reason}')
        return ''
    if os.environ.get('TORCH_CUDA_ARCH_LIST'):
        return os.environ['TORCH_CUDA_ARCH_LIST'].replace(';', ' ')
    known = subprocess.check_output([nvcc, '--list-gpu-arch'], text=True).split()
    older, blackwell = (
        [name for name in names if f'compute_{name.replace(".", "")}' in known]
        for names in (('7.0', '7.5', '8.0', '8.6', '8.9', '9.0'), ('10.0', '12.0'))
    )
    return ' '.join([f'{" ".join(older)}+PTX', *blackwell])


setup(**compiled_operators())
