"""The operators of a block of TransNeXt against the formulas; whole stages are in tests/systems/transnext."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bioattn_mm.ops.check import compare
from bioattn_mm.ops.registration import differentiable
from bioattn_mm.ops.samples import ON_CUDA
from tests.ops.blocks import EPS, OF_BLOCKS
from tests.ops.conftest import needs_cuda, needs_library

pytestmark = needs_library
CASES = [
    (name, dtype, sizes)
    for name, operator in OF_BLOCKS.items()
    for dtype in operator.dtypes['cpu']
    for sizes in operator.sizes
]


@pytest.mark.parametrize(('name', 'dtype', 'sizes'), CASES, ids=str)
def test_values_and_gradients(name: str, dtype: torch.dtype, sizes: dict) -> None:
    agrees, cells = compare(OF_BLOCKS[name], 'cpu', 'cpu', dtype, sizes)
    assert agrees, cells


@needs_cuda
@pytest.mark.parametrize('dtype', ON_CUDA)
@pytest.mark.parametrize('name', OF_BLOCKS)
def test_values_and_gradients_on_cuda(name: str, dtype: torch.dtype) -> None:
    norms = dict(aggregate=(7, 8), after_attention=(4, 5, 12, 13))[name]  # in the dtype of the tokens there
    full_precision = set(OF_BLOCKS[name].full_precision) - set(norms)
    sizes = dict(grid=(16, 24), **dict(pooled_grid=(2, 3), channels=24) if name == 'aggregate' else {})
    agrees, cells = compare(replace(OF_BLOCKS[name], full_precision=full_precision), 'cuda', 'cuda', dtype, sizes)
    assert agrees, cells


@pytest.mark.parametrize('name', OF_BLOCKS)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    operator = OF_BLOCKS[name]
    inputs = operator.inputs(dict(batch=1, grid=(2, 3)), 'cpu', torch.float64)
    leaves = [tensor.requires_grad_() for tensor in operator.leaves(inputs)]

    def run(*values: Tensor) -> Tensor:
        values = iter(values)
        return operator.run(*(next(values) if t.requires_grad else t for t in inputs), backend='cpu')

    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)


def test_a_block_whose_tokens_nobody_takes() -> None:
    """The last of a stage: only its norm has a gradient."""
    operator = OF_BLOCKS['after_attention']
    inputs = operator.inputs({}, 'cpu', torch.float32)
    leaves = [tensor.requires_grad_() for tensor in operator.leaves(inputs)]
    results = differentiable('after_attention', *inputs, EPS, True)[0], operator.run(*inputs, backend='reference')[1]
    got, want = (torch.autograd.grad(result.square().sum(), leaves) for result in results)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
