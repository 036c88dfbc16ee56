"""Python calls of a training step, which a GPU waits for; `benchmarks/host.py` has those of timm's ViT, 2,012.

Those of Swin-T, beside which GABSwin is, are 2,514.
"""

from functools import partial

import pytest
import torch

from bioattn_mm import VARS, ConViT, GABSwin, GABViT, PerViT
from tests.calls import calls_of
from tests.ops.conftest import needs_library

BACKBONES = {
    'ConViT': (partial(ConViT, 'tiny'), 2130),
    'GABSwin': (partial(GABSwin, 'tiny'), 1.5 * 2514),
    'GABViT': (partial(GABViT, 'small'), 3018),
    'PerViT': (partial(PerViT, 'tiny'), 2940),
    'VARS-S in RVT': (partial(VARS, 'rvt-tiny', pretrain_size=64), 3018),
    'VARS-D in DeiT': (partial(VARS, 'deit-tiny', 'vars_d', pretrain_size=64), 2420),
}


@needs_library
@pytest.mark.parametrize('name', BACKBONES)
def test_number_of_calls(name: str) -> None:
    build, limit = BACKBONES[name]
    backbone, image = build(), torch.randn(1, 3, 64, 64)
    parameters = list(backbone.parameters())

    def train() -> None:
        sum(output.sum() for output in backbone(image)).backward()
        for parameter in parameters:
            parameter.grad = None

    assert calls_of(train) < limit
