"""benchmarks/baselines.py: aggregated attention by other means has the same result."""

from importlib import import_module
from pathlib import Path

import pytest
import torch

from bioattn_mm.ops import aggregated_attention
from tests.ops.inputs import aggregated_attention_inputs

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parents[2] / 'benchmarks')
    BASELINES = import_module('baselines')


@pytest.mark.parametrize('sizes', [dict(), dict(grid=(9, 6), pooled_grid=(3, 2), window_size=5)], ids=str)
def test_baselines_compute_the_same(sizes: dict) -> None:
    arguments = list(aggregated_attention_inputs(**sizes, dtype=torch.float32).values())
    want = aggregated_attention(*arguments, backend='reference')
    torch.testing.assert_close(BASELINES.unfused_attention(*arguments), want, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        flex = BASELINES.flex_aggregated_attention(*arguments, compiled=False)
        torch.testing.assert_close(flex(*arguments), want, rtol=1e-5, atol=1e-5)
