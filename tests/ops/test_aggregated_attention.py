"""Aggregated attention, and the other means of benchmarks/baselines.py, against its formula written out."""

from importlib import import_module
from pathlib import Path

import pytest
import torch

from bioattn_mm.ops import aggregated_attention
from bioattn_mm.ops.arguments import AggregatedAttentionInputs
from tests.ops.kernels import aggregated_attention_inputs


def written_out(x: AggregatedAttentionInputs) -> torch.Tensor:
    """Equations 10 to 14 of the paper for one query at a time."""
    batch, height, width, heads, _ = x.query.shape
    window_size = round(x.window_bias.shape[1] ** 0.5)
    output = torch.zeros_like(x.query)
    for b, i, j, h in torch.cartesian_prod(*(torch.arange(n) for n in (batch, height, width, heads))).tolist():
        query = x.query[b, i, j, h]
        logits, values, extra = [], [], []
        for offset in range(window_size**2):
            row, column = i + offset // window_size - window_size // 2, j + offset % window_size - window_size // 2
            if 0 <= row < height and 0 <= column < width:
                logits.append(query @ x.key[b, row, column, h] + x.window_bias[h, offset])
                values.append(x.value[b, row, column, h])
                extra.append(x.token_weights[b, i, j, h, offset])
        for u in range(x.pooled_key.shape[1]):
            for v in range(x.pooled_key.shape[2]):
                bias = x.pooled_bias[h, x.pooled_bias_rows[i, u], j, v]
                logits.append(query @ x.pooled_key[b, u, v, h] + bias)
                values.append(x.pooled_value[b, u, v, h])
                extra.append(torch.zeros((), dtype=query.dtype))
        weights = torch.stack(logits).softmax(0) + torch.stack(extra)
        output[b, i, j, h] = weights @ torch.stack(values)
    return output


@pytest.mark.parametrize(
    'sizes',
    [
        dict(),
        dict(window_size=5),
        dict(window_size=7, grid=(3, 4)),
        dict(grid=(1, 1), pooled_grid=(1, 1)),
        dict(grid=(2, 9), pooled_grid=(7, 7), heads=1),
    ],
    ids=str,
)
def test_equals_the_formula(sizes: dict, backend: str) -> None:
    inputs = aggregated_attention_inputs(**sizes)
    output = aggregated_attention(*inputs, backend=backend)
    torch.testing.assert_close(output, written_out(inputs), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize('sizes', [dict(), dict(grid=(9, 6), pooled_grid=(3, 2), window_size=5)], ids=str)
def test_baselines_compute_the_same(sizes: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / 'benchmarks')
    baselines, inputs = import_module('baselines'), aggregated_attention_inputs(**sizes, dtype=torch.float32)
    want = aggregated_attention(*inputs, backend='reference')
    torch.testing.assert_close(baselines.unfused_attention(*inputs), want, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        flex = baselines.flex_aggregated_attention(*inputs, compiled=False)
        torch.testing.assert_close(flex(*inputs), want, rtol=1e-5, atol=1e-5)
