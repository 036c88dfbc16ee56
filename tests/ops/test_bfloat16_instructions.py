"""On processors without instructions of bfloat16 the kernels compute the same in float32."""

from collections.abc import Iterator

import pytest
import torch

from bioattn_mm.ops import cosine_attention, gated_convolution
from bioattn_mm.ops.check import make_cosine_attention, make_gated_convolution
from tests.ops.conftest import needs_library

pytestmark = needs_library

# The instructions round the factors of products to bfloat16, too.
TOLERANCE = 2e-2


@pytest.fixture
def processors() -> Iterator[list[bool]]:
    """Whether to allow the instructions: both ways, if this processor has them."""
    if not torch.ops.bioattn_mm.allow_bfloat16_instructions(True):
        pytest.skip('this processor has no instructions of bfloat16')
    yield [True, False]
    torch.ops.bioattn_mm.allow_bfloat16_instructions(True)


@pytest.mark.parametrize(
    ('operator', 'inputs', 'tokens'),
    [
        (cosine_attention, lambda: make_cosine_attention(grid=(17, 37), pooled_grid=(5, 9), channels=24), 3),
        (gated_convolution, lambda: make_gated_convolution(grid=(35, 37), channels=48), 1),
    ],
    ids=('cosine_attention', 'gated_convolution'),
)
def test_results_are_the_same_within_rounding(operator, inputs, tokens: int, processors: list[bool]) -> None:
    inputs = [x.bfloat16() if k < tokens else x for k, x in enumerate(inputs())]
    inputs = [x.requires_grad_() if x.is_floating_point() else x for x in inputs]
    results = []
    for allowed in processors:
        assert torch.ops.bioattn_mm.allow_bfloat16_instructions(allowed) == allowed
        output = operator(*inputs, backend='cpu')
        weights = torch.linspace(-1, 1, output.numel()).view_as(output).to(output)
        learned = [x for x in inputs if x.requires_grad]
        results.append([output, *torch.autograd.grad(output, learned, weights)])
    fast, slow = results
    assert not all(torch.equal(one, other) for one, other in zip(fast, slow, strict=True))
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE * other.abs().max().item())
