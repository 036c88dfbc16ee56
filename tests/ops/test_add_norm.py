"""LayerNorm and what is before it in one operator: what runs without the kernels of test_cuda_kernels.py."""

import pytest
import torch

from bioattn_mm.ops import backends
from bioattn_mm.ops.samples import OPERATORS
from tests.needs import needs
from tests.ops.kernels import Place, check, inputs_of

pytestmark = needs('operators')


@pytest.mark.parametrize('name', ['add_norm', 'add_norm, both results', 'add_norm of two tensors'])
@pytest.mark.parametrize(
    ('sizes', 'dtype'),
    [
        (dict(grid=(1, 1), channels=16), torch.float32),
        (dict(grid=(5, 7), channels=1030), torch.float32),  # several blocks of tokens, and vectors that overlap
        (dict(channels=70), torch.bfloat16),
        (dict(batch=0, channels=16), torch.float32),
    ],
    ids=str,
)
def test_the_kernels_of_the_cpu(name: str, sizes: dict, dtype: torch.dtype) -> None:
    check(name, inputs_of(name, dtype, **sizes), Place('cpu', 'cpu'))


@pytest.mark.parametrize(
    ('name', 'wrong_on_cpu', 'of_cpu', 'wrong', 'message'),
    [
        (
            *(
                'add_norm',
                dict(channels=6),
                'on the CPU takes 16 channels or more and no float16, got 6 of torch.float32',
            ),
            *(dict(channels=5), 'add_norm on CUDA takes an even number of channels up to 4096, got 5'),
        ),
        (
            *('gelu_pool_norm', {}, 'is compiled for CUDA alone', dict(height=24)),
            r'takes a grid that divides that of x, got \(16, 16\) and \(24, 48\)',
        ),
    ],
)
def test_what_kernels_take(
    name: str, wrong_on_cpu: dict, of_cpu: str, wrong: dict, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors without data stand for those on a GPU."""
    operator = OPERATORS[name]
    inputs = operator.inputs(wrong_on_cpu, 'cpu', torch.float32)
    assert torch.equal(operator.run(*inputs), operator.run(*inputs, backend='reference'))
    with pytest.raises(ValueError, match=f"'cpu' cannot run: {name} {of_cpu}"):
        operator.run(*inputs, backend='cpu')
    monkeypatch.setattr(backends, 'why_not_compiled', lambda device: None)
    meta = operator.values_and_gradients([t.to('meta') for t in inputs], 'meta')
    assert [t.shape for t in meta] == [t.shape for t in operator.values_and_gradients(inputs, 'reference')]
    with pytest.raises(ValueError, match=message):
        operator.run(*(t.to('meta') for t in operator.inputs(wrong, 'cpu', torch.float32)), backend='meta')
