"""What tests need that not every machine has: whether it is there, and the reason why a test without it is skipped.

`needs('onnx', 'GPU')` marks a test or a parameter, `module_needs` a file whose imports need it. The mark `extra` is
added to every test that needs a package of `make setup EXTRA=...`: `make test-extra` runs these.
"""

import ctypes
import os
import re
import shutil
import sys
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from bioattn_mm.ops.backends import CUDA_ARCHITECTURES, LIBRARY_IS_LOADED
from bioattn_mm.training.amp import cpu_has_bfloat16
from bioattn_mm.training.installed import EXTRAS as EXTRAS_OF_PACKAGE

# The extras of `make setup` by the names under which their packages are imported.
OF_SETUP = ('deploy', 'demo', 'evaluation', 'log', 'tiff')
EXTRAS = {name: extra for name, extra in EXTRAS_OF_PACKAGE.items() if extra in OF_SETUP}
EXTRAS |= dict(openvino='deploy', playwright='demo')
EXTRAS |= dict.fromkeys(('accelerate', 'lightning', 'segmentation_models_pytorch', 'transformers'), 'bridges')
ONNXRUNTIME_WEB = Path(__file__).parents[1] / 'packaging' / 'runtime' / 'node_modules'
CXX = os.environ.get('CXX', 'g++')


def find_chromium() -> str | None:
    """Path of the Chromium of this machine, if it has one."""
    return next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None)


def openvino_has_bfloat16() -> bool:
    """Whether OpenVINO computes in bfloat16: ONEDNN_MAX_CPU_ISA keeps it from instructions that the processor has."""
    highest = os.environ.get('ONEDNN_MAX_CPU_ISA', 'DEFAULT').upper()
    if find_spec('openvino') is None or not re.search('DEFAULT|ALL|BF16|FP16|AMX|AVX10', highest):
        return False
    core = import_module('bioattn_mm.runtime.backends').openvino_core()
    return 'BF16' in core.get_property('CPU', 'OPTIMIZATION_CAPABILITIES')


# By the name of what is needed: whether it is there, and the reason of the skip. Other names are those of packages.
MACHINE = {
    'mallinfo2': (
        lambda: sys.platform == 'linux' and hasattr(ctypes.CDLL(None), 'mallinfo2'),
        'the C library is not that of GNU, or older than 2.33',
    ),
    'GPU': (torch.cuda.is_available, 'there is no GPU'),
    'no GPU': (lambda: not torch.cuda.is_available(), 'there is a GPU'),
    'torch for CUDA': (lambda: torch.version.cuda is not None, 'this torch is built for the CPU alone'),
    'operators': (lambda: LIBRARY_IS_LOADED, 'the compiled operators were not built'),
    'CUDA operators': (lambda: torch.cuda.is_available() and CUDA_ARCHITECTURES, 'no GPU, or no operators for one'),
    'bfloat16': (cpu_has_bfloat16, 'this processor has no instructions of bfloat16'),
    'bfloat16 in OpenVINO': (openvino_has_bfloat16, 'OpenVINO does not compute in bfloat16 on this processor'),
    'compiler': (lambda: shutil.which(CXX), f'there is no {CXX} to compile with'),
    'onnxruntime-web': (
        ONNXRUNTIME_WEB.is_dir,
        'there is no onnxruntime-web: npm install --prefix packaging/runtime',
    ),
    'panopticapi': (  # and not what stands in for it
        lambda: PathFinder.find_spec('panopticapi'),
        'panopticapi is not installed: pip install git+https://github.com/cocodataset/panopticapi',
    ),
    'real data': (
        lambda: os.environ.get('BIOATTN_REAL_DATA'),
        'no archives of real data: make test-real DATA=FOLDER',
    ),
    'Chromium': (find_chromium, 'there is no Chromium: apt-get install chromium'),
}


@cache
def reason_of_lack(name: str) -> str | None:
    """Why a test cannot run here; None where what it needs is there: by a key of `MACHINE`, or 'timm>=1.0.31'."""
    if name in MACHINE:
        is_there, reason = MACHINE[name]
        return None if is_there() else reason
    package = Requirement(name)
    if find_spec(package.name) is None:
        how = f': make setup EXTRA={EXTRAS[package.name]}' if package.name in EXTRAS else ''
        return f'{package.name} is not installed{how}'
    if package.specifier and not package.specifier.contains(version(package.name), prereleases=True):
        return f'{package.name} is {version(package.name)}, and {package.specifier} is needed'
    return None


def needs(*names: str) -> pytest.MarkDecorator:
    """Mark of a test, or of a parameter, that is skipped where one of the names lacks; see `reason_of_lack`."""
    return pytest.mark.needs(*names)


def module_needs(*names: str) -> pytest.MarkDecorator:
    """The same for a whole file, before it imports what it needs: `pytestmark = module_needs('onnx')`."""
    for reason in filter(None, map(reason_of_lack, names)):
        pytest.skip(reason, allow_module_level=True)
    return needs(*names)


def apply_needs(item: pytest.Item) -> None:
    """Skip a test that needs what lacks, and mark one that needs an extra."""
    names = [name for mark in item.iter_markers('needs') for name in mark.args]
    for reason in filter(None, map(reason_of_lack, names)):
        item.add_marker(pytest.mark.skip(reason=reason))
    if EXTRAS.keys() & set(names):
        item.add_marker('extra')
