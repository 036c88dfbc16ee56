"""Aggregated attention against its formula, written out query by query."""

import pytest
import torch

from bioattn_mm.ops import aggregated_attention
from bioattn_mm.ops.arguments import AggregatedAttentionInputs
from bioattn_mm.ops.backends import choose_backend
from tests.ops.inputs import aggregated_attention_inputs


def written_out(arguments: dict[str, torch.Tensor]) -> torch.Tensor:
    """Equations 10 to 14 of the paper for one query at a time."""
    x = AggregatedAttentionInputs(**arguments)
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
    arguments = aggregated_attention_inputs(**sizes)
    output = aggregated_attention(**arguments, backend=backend)
    torch.testing.assert_close(output, written_out(arguments), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize('row', [-1, 4])
def test_rows_outside_of_the_bias(row: int, backend: str) -> None:
    arguments = aggregated_attention_inputs()
    arguments['pooled_bias_rows'][3, 1] = row
    # PyTorch's index_select raises a RuntimeError, the compiled operator an IndexError.
    with pytest.raises(
        (IndexError, RuntimeError), match=f'out of DATA bounds|pooled_bias_rows must be 0 to 3, .* got {row}'
    ):
        aggregated_attention(**arguments, backend=backend)


def test_backend_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('BIOATTN_MM_BACKEND', 'reference')
    assert choose_backend(torch.device('cpu'), None) == 'reference'
    monkeypatch.setenv('BIOATTN_MM_BACKEND', 'abacus')
    with pytest.raises(ValueError, match="no backend 'abacus' for cpu: expected one of .*reference"):
        aggregated_attention(**aggregated_attention_inputs())
