"""Python calls of a training step and of inference, for which a GPU waits; they are the same on every machine.

`benchmarks/host.py` has those of timm's ViT, 2,012, and of Swin-T, 2,514, in inference 2,403.
"""

import cProfile
import gc
import pstats
from collections.abc import Callable
from functools import partial

import pytest
import torch

from bioattn_mm import VARS, ConViT, GABSwin, GABViT, PerViT, TransNeXt
from tests.ops.conftest import needs_library

SWIN = 2514
# The backbone, whether it trains in mixed precision, and how many calls it may make.
BACKBONES = {
    'ConViT': (partial(ConViT, 'tiny'), False, 2213),
    'GABSwin': (partial(GABSwin, 'tiny'), False, 1.5 * SWIN),
    'GABViT': (partial(GABViT, 'small'), False, 3018),
    'PerViT': (partial(PerViT, 'tiny'), False, 2980),
    'VARS-S in RVT': (partial(VARS, 'rvt-tiny', pretrain_size=64), False, 3018),
    'VARS-D in DeiT': (partial(VARS, 'deit-tiny', 'vars_d', pretrain_size=64), False, 2420),
    'TransNeXt': (partial(TransNeXt, 'tiny'), False, 1.25 * SWIN),
    'TransNeXt in bfloat16': (partial(TransNeXt, 'tiny'), True, 1.33 * SWIN),
    'TransNeXt in bfloat16 with dropped paths': (partial(TransNeXt, 'tiny', drop_path_rate=0.2), True, 1.35 * SWIN),
}


def calls_of(run: Callable[[], object]) -> int:
    """Calls of functions, of Python and of C, that Python makes in the second run of `run`."""
    run()
    profile = cProfile.Profile()
    gc.collect()
    gc.disable()  # what it frees of other tests' objects calls their callbacks
    try:
        profile.runcall(run)
    finally:
        gc.enable()
    return pstats.Stats(profile).total_calls


@needs_library
@pytest.mark.parametrize('name', BACKBONES)
def test_number_of_calls(name: str) -> None:
    build, autocast, limit = BACKBONES[name]
    backbone, image = build(), torch.randn(1, 3, 64, 64)
    parameters = list(backbone.parameters())

    def train() -> None:
        with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
            outputs = backbone(image)
        sum(output.sum() for output in outputs).backward()
        for parameter in parameters:
            parameter.grad = None

    assert calls_of(train) < limit
    if name.startswith('TransNeXt'):
        backbone.eval()
        with torch.no_grad():
            assert calls_of(lambda: backbone(image)) < 1.1 * 2403
