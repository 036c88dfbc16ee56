"""Install bioattn_mm: `pip install -e .`, or `make setup` for a complete environment."""

from pathlib import Path

from setuptools import find_packages, setup

root = Path(__file__).parent
version: dict = {}
exec((root / 'bioattn_mm' / 'version.py').read_text(), version)

setup(
    name='bioattn_mm',
    version=version['__version__'],
    description='Biologically inspired attention backbones for dense prediction with OpenMMLab',
    long_description=(root / 'README.md').read_text() if (root / 'README.md').exists() else '',
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
)
