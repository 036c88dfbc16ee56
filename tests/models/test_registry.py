"""`type='bioattn_mm.TransNeXt'` from the scope of every OpenMMLab library, with no custom imports."""

import subprocess
import sys

import pytest

BUILD = """
from bioattn_mm import compat
compat.install()
from mmengine.registry import init_default_scope
from {library}.registry import MODELS
init_default_scope('{library}')
backbone = MODELS.build(dict(type='bioattn_mm.TransNeXt', arch='micro'))
print(type(backbone).__module__, backbone.out_channels)
"""


@pytest.mark.parametrize('library', ['mmdet', 'mmseg', 'mmpretrain'])
def test_found_from_the_scope_of(library: str) -> None:
    # A process of its own: nothing has imported the backbones before.
    process = subprocess.run(
        [sys.executable, '-c', BUILD.format(library=library)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1] == 'bioattn_mm.models.backbones.transnext (48, 96, 192, 384)'
