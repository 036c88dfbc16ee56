"""The table of docs/export.md: what --via torch exports, in which formats and sizes."""

import json
from pathlib import Path

import pytest
import torch

from bioattn_mm.errors import InputError
from bioattn_mm.export.formats import PACKAGES, export

from .small_models import BACKBONES, build

SIZE = (64, 96)
HEADED = ('TransNeXt', 'ConViT', 'PerViT', 'GABViT', 'VARS-D', 'VARS-SD')
# What is refused for a reason of the system, by (system, format, size).
REFUSED = {
    ('VARS-S', 'onnx', 'one'): 'torch.onnx cannot write this model',
    ('VARS-S', 'onnx', 'any'): 'torch.onnx cannot write this model',
    ('GABSwin', 'onnx', 'any'): 'GABSwin is exported for images of one size only',
    ('GABSwin', 'pt2', 'any'): 'GABSwin is exported for images of one size only',
}
# A model with a head at any size has its backbone at any size, too.
ROWS = [
    *(
        (name, head, kind, 'any')
        for head in ('classifier', 'segmentor')
        for kind in ('onnx', 'pt2')
        for name in HEADED
    ),
    *((name, None, kind, 'any') for kind in ('onnx', 'pt2') for name in BACKBONES if name not in HEADED),
    *((name, None, kind, 'one') for kind in ('onnx', 'pt2') for name in BACKBONES),
    *(('GABSwin', head, kind, 'one') for head in ('classifier', 'segmentor') for kind in ('onnx', 'pt2')),
    *(('VARS-S', head, 'pt2', 'any') for head in ('classifier', 'segmentor')),
]
TASKS = {'segmentor': 'segmentation', 'classifier': 'classification', None: 'features'}


def hold(name: str, head: str | None, kind: str, size: str, folder: Path) -> None:
    """Export a model, which compares the file with it, or see it refused."""
    for package in PACKAGES[kind]:
        pytest.importorskip(package, reason=f'{package} is not installed: make setup EXTRA=deploy')
    torch.manual_seed(0)
    model, config = build(name, head)
    arguments = (model, config, kind, folder, SIZE if size == 'one' else None)
    if (name, kind, size) in REFUSED:
        with pytest.raises(InputError, match=REFUSED[name, kind, size]):
            export(*arguments, backbone=head is None)
        assert list(folder.iterdir()) == []
        return
    file, pipeline = export(*arguments, backbone=head is None)
    assert file.stat().st_size > 10_000
    assert json.loads(pipeline.read_text())['task'] == TASKS[head]


@pytest.mark.every_config
@pytest.mark.parametrize(('name', 'head', 'kind', 'size'), ROWS)
def test_row(name: str, head: str | None, kind: str, size: str, tmp_path: Path) -> None:
    hold(name, head, kind, size, tmp_path)
