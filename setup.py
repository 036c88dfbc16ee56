"""Install bioattn_mm: `pip install --no-build-isolation -e .`, or `make setup` for a complete environment.

With torch and a C++ compiler, the operators are compiled; with nvcc and a GPU (or FORCE_CUDA=1), for CUDA, too.
Without them, attention runs in PyTorch. `--no-build-isolation` is needed because pip's own build environment has no
torch.
"""

import os
import re
import subprocess
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def compiled_operators() -> dict:
    """Arguments of `setup` that compile the operators; none without torch."""
    try:
        from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension
    except ImportError:
        print('torch is not installed: installing without compiled operators')
        return {}
    csrc = ROOT / 'bioattn_mm' / 'ops' / 'csrc'
    sources = [*csrc.glob('*.cpp'), *csrc.glob('cpu/*.cpp')]
    # Floating-point exceptions and errno, which nothing here reads, would keep loops from being vectorised.
    flags = dict(cxx=['-O3', '-fopenmp', '-fno-math-errno', '-fno-trapping-math'])
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
        extra_link_args=['-fopenmp'],
        # It is loaded by torch.ops.load_library and does not use Python's ABI: one build fits every Python.
        py_limited_api=True,
        # If it does not compile, that is reported and the installation goes on.
        optional=True,
    )
    build = BuildExtension.with_options(no_python_abi_suffix=True, use_ninja=False)
    return dict(ext_modules=[library], cmdclass=dict(build_ext=build))


def cuda_architectures() -> str:
    """Compute capabilities to compile for, such as '8.0 9.0+PTX'; empty to compile without CUDA.

    TORCH_CUDA_ARCH_LIST names them; by default they are those from 7.0 to 9.0 that the toolkit supports. On a machine
    without a GPU nothing is compiled for CUDA unless FORCE_CUDA=1.
    """
    import torch
    from torch.utils.cpp_extension import CUDA_HOME

    forced = os.environ.get('FORCE_CUDA') == '1'
    nvcc = Path(CUDA_HOME or '') / 'bin' / 'nvcc'
    if not torch.cuda.is_available() and not forced:
        return ''
    if torch.version.cuda is None or not nvcc.is_file():
        print(f'Operators without CUDA: torch is built for {torch.version.cuda or "the CPU alone"}, nvcc is {nvcc}')
        return ''
    release = re.search(r'release (\d+)', subprocess.check_output([nvcc, '--version'], text=True))[1]
    if release != torch.version.cuda.split('.')[0]:
        print(f'Operators without CUDA: nvcc is of CUDA {release}, torch of {torch.version.cuda}')
        return ''
    if os.environ.get('TORCH_CUDA_ARCH_LIST'):
        return os.environ['TORCH_CUDA_ARCH_LIST'].replace(';', ' ')
    known = subprocess.check_output([nvcc, '--list-gpu-arch'], text=True).split()
    wanted = ('7.0', '7.5', '8.0', '8.6', '8.9', '9.0')
    names = [name for name in wanted if f'compute_{name.replace(".", "")}' in known]
    return f'{" ".join(names)}+PTX'


version: dict = {}
exec((ROOT / 'bioattn_mm' / 'version.py').read_text(), version)

setup(
    name='bioattn_mm',
    version=version['__version__'],
    description='Biologically inspired attention backbones for dense prediction with OpenMMLab',
    long_description=(ROOT / 'README.md').read_text(),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    python_requires='>=3.10',
    packages=find_packages(include=['bioattn_mm', 'bioattn_mm.*']),
    # Lower bounds; requirements/ pins the versions that are tested.
    install_requires=[
        'torch>=2.5',
        'torchvision',
        'onedl-mmengine>=0.10.12',
        'onedl-mmcv>=2.3.6',
        'onedl-mmdetection>=3.5.1',
        'onedl-mmsegmentation>=1.4.2',
        'onedl-mmpretrain>=1.3.6',
        'timm>=1.0',
        'imaug',
        'lmfit',
        'pycocotools',
        'rich',
    ],
    # What tools/export.py needs besides mmdeploy. That is installed with --no-deps, because it requires mmengine,
    # which pip would install over onedl-mmengine.
    extras_require=dict(
        deploy=['aenum', 'grpcio', 'multiprocess', 'onnx', 'onnxruntime'],
        demo=['gradio>=6'],
        deepspeed=['deepspeed<0.19'],  # mmengine does not find the optimizers of later versions
        tensorboard=['tensorboard'],
    ),
    **compiled_operators(),
)
