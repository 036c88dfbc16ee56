"""Install bioattn_mm: `pip install --no-build-isolation -e .`, or `make setup` for a complete environment.

The operators are compiled where torch and a C++ compiler are there; elsewhere attention runs in PyTorch. Without
`--no-build-isolation`, pip builds in an environment that has no torch.
"""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def compiled_operators() -> dict:
    """Arguments of `setup` that compile the operators, none where torch is not there."""
    try:
        from torch.utils.cpp_extension import BuildExtension, CppExtension
    except ImportError:
        print('torch is not there: installing without compiled operators')
        return {}
    csrc = Path('bioattn_mm') / 'ops' / 'csrc'
    library = CppExtension(
        'bioattn_mm.ops._library',
        sorted(str(path.relative_to(ROOT)) for path in (ROOT / csrc).rglob('*.cpp')),
        # Floating-point exceptions and errno are never looked at, and keep loops from being vectorised.
        extra_compile_args=['-O3', '-fopenmp', '-fno-math-errno', '-fno-trapping-math'],
        extra_link_args=['-fopenmp'],
        # Loaded with torch.ops.load_library: nothing of Python's ABI, one build for every Python.
        py_limited_api=True,
        # A failure to compile is reported, and the installation goes on.
        optional=True,
    )
    build = BuildExtension.with_options(no_python_abi_suffix=True, use_ninja=False)
    return dict(ext_modules=[library], cmdclass=dict(build_ext=build))


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
    # Any release of these lines; requirements/ pins the ones that are tested.
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
        'pycocotools',
        'rich',
    ],
    **compiled_operators(),
)
