"""`type='bioattn_mm.TransNeXt'` and `type='bioattn_mm.CompatibleDINO'` from the scope of every OpenMMLab library.

Without custom imports, and each in a process of its own, where nothing has imported the models before.
"""

import subprocess
import sys

import pytest

BUILD = """
import bioattn_mm
from mmengine.registry import init_default_scope
from {library}.registry import MODELS
init_default_scope('{library}')
backbone = MODELS.build(dict(type='bioattn_mm.TransNeXt', arch='micro'))
print(type(backbone).__module__, backbone.out_channels)
"""


LAZY = """
import sys
import bioattn_mm
from mmengine.registry import MODELS
print(MODELS.get('bioattn_mm.TransNeXt').__module__)
print(sorted({'mmdet', 'mmseg', 'mmpretrain'} & set(sys.modules)))
print(MODELS.get('bioattn_mm.CompatibleDINO').__module__)
"""


def output(code: str) -> list[str]:
    """The lines that code prints in a process of its own."""
    process = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


@pytest.mark.parametrize('library', ['mmdet', 'mmseg', 'mmpretrain'])
def test_found_from_the_scope_of(library: str) -> None:
    line = output(BUILD.format(library=library))[-1]
    assert line == 'bioattn_mm.models.backbones.transnext (48, 96, 192, 384)'


def test_a_backbone_imports_no_other_library() -> None:
    lines = [line for line in output(LAZY) if 'OneDL' not in line]
    assert lines == ['bioattn_mm.models.backbones.transnext', '[]', 'bioattn_mm.models.detectors.dino']
