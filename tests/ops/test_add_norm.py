"""LayerNorm and what is before it in one operator, on the CPU: the kernels of CUDA are in test_cuda_kernels.py."""

import pytest
import torch

from tests.ops.conftest import Place, needs_library
from tests.ops.kernels import check, inputs_of


@needs_library
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
def test_equals_pytorch(name: str, sizes: dict, dtype: torch.dtype) -> None:
    check(name, inputs_of(name, dtype, **sizes), Place('cpu'))
