"""The Python example of docs/export.md, with a small segmentor in the place of the exported model."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from ..needs import module_needs

pytestmark = module_needs('onnx', 'onnxruntime', 'openvino')

from ..docs.blocks import read_blocks  # noqa: E402
from .comparison import image_of  # noqa: E402
from .small_models import SLIDE, segmentor  # noqa: E402


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = [block for block in read_blocks('docs/export.md') if block.language == 'python']
    monkeypatch.chdir(tmp_path)
    segmentor(tmp_path / 'exported', **SLIDE).rename(tmp_path / 'exported/end2end.onnx')
    cv2.imwrite('street.jpg', image_of(60, 90))
    found = {}
    exec(block.text, found)
    assert found['result'].labels.shape == (60, 90) and len(np.unique(found['result'].labels)) > 1
    assert cv2.imread('drawn.png').shape == (60, 90, 3)
