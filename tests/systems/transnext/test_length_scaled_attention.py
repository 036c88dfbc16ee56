"""Memory and compilation of TransNeXt's attention of stage 4, whose formula is in test_ablations.py."""

from collections.abc import Callable

import pytest
import torch

from bioattn_mm.ops import chunked_attention
from bioattn_mm.systems.transnext import LengthScaledAttention, LogCPB
from tests.systems.layers import randomized

MODES = ['extrapolate', 'interpolate']


def make_layer(mode: str) -> LengthScaledAttention:
    return randomized(LengthScaledAttention(24, 3, LogCPB(3, (4, 4), mode, (4, 5), (4, 5)))).float()


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('training', [False, True])
def test_no_tensor_of_all_pairs(
    mode: str, training: bool, backend: str, record_sizes: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('BIOATTN_MM_BACKEND', backend)
    height, width = grid = (32, 24)
    monkeypatch.setattr(chunked_attention, 'MAX_WEIGHTS_PER_CHUNK', 4 * 3 * width * height * width)
    layer = make_layer(mode)
    with torch.set_grad_enabled(training), record_sizes() as sizes:
        output = layer(torch.randn(1, *grid, 24, requires_grad=training))
        if training:
            output.sum().backward()
    pairs = 3 * (height * width) ** 2
    assert max(sizes) < (pairs / 15 if mode == 'extrapolate' and backend == 'cpu' else pairs / 4)


@pytest.mark.slow
@pytest.mark.parametrize('mode', MODES)
def test_compiles_into_one_graph(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_attention, 'MAX_WEIGHTS_PER_CHUNK', 3000)  # two chunks
    layer, x = make_layer(mode), torch.randn(1, 6, 7, 24)
    compiled = torch.compile(layer, fullgraph=True, backend='aot_eager')
    torch.testing.assert_close(compiled(x), layer(x))
    gradients = (
        torch.autograd.grad(module(x).square().sum(), list(layer.parameters())) for module in (compiled, layer)
    )
    # The exact gradient of the table's last bias is 0: a softmax takes no notice of what all logits share.
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-3)
