"""The linear layer against PyTorch's, in bfloat16 by the operator for it."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from bioattn_mm.layers.linear import Linear
from bioattn_mm.ops import linear
from tests.ops.conftest import check_any_number_of_threads, needs_library

SHAPES = [
    ((2, 5, 7, 72), 40),
    ((3, 24), 8),
    ((1, 16), 100),
    ((1300, 50), 21),
    ((33, 1), 1),
    ((600, 1030), 9),
    ((0, 24), 8),
]


def make_inputs(shape: tuple[int, ...], outputs: int, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    inputs = [torch.randn(shape).to(dtype), torch.randn(outputs, shape[-1]), torch.randn(outputs)]
    return [tensor.requires_grad_() for tensor in inputs]


def output_and_gradients(inputs: list[torch.Tensor], function: Callable = linear) -> list[torch.Tensor]:
    output = function(*inputs)
    weights = torch.linspace(-1, 1, output.numel()).view_as(output).bfloat16().to(output)
    return [output, *torch.autograd.grad(output, inputs, weights)]


@needs_library
@pytest.mark.parametrize('allowed', [True, False])
@pytest.mark.parametrize(('shape', 'outputs'), SHAPES, ids=str)
def test_equals_pytorch_in_float64(shape: tuple[int, ...], outputs: int, allowed: bool) -> None:
    inputs = make_inputs(shape, outputs)
    # Products are of parameters in bfloat16, as with autocast.
    rounded = [inputs[0].double(), *(tensor.bfloat16().double() for tensor in inputs[1:])]
    exact = output_and_gradients([tensor.detach().requires_grad_() for tensor in rounded], F.linear)
    torch.ops.bioattn_mm.allow_bfloat16_instructions(allowed)
    try:
        results = output_and_gradients(inputs)
    finally:
        torch.ops.bioattn_mm.allow_bfloat16_instructions(True)
    for got, want, like in zip(results, exact, [inputs[0], *inputs], strict=True):
        assert got.dtype == like.dtype and got.shape == want.shape
        # Without the instructions, the gradient of the weight is rounded to bfloat16.
        tolerance = 2**-8 if like.dtype == torch.bfloat16 or not allowed else 1e-5
        scale = want.abs().max().item() if want.numel() else 0
        torch.testing.assert_close(got.double(), want, rtol=0, atol=tolerance * scale)


@needs_library
def test_without_bias_and_in_any_layout() -> None:
    x, weight, _ = make_inputs((2, 24, 5, 6), 8)
    weight = torch.randn(24, 8).T.requires_grad_()
    tokens = x.permute(0, 2, 3, 1)
    output = linear(tokens, weight)
    torch.testing.assert_close(
        output.float(), F.linear(tokens.float(), weight.bfloat16().float()), rtol=1e-2, atol=1e-2
    )
    # The gradient of a mean has one number for all tokens.
    gradients = torch.autograd.grad(output.float().mean(), [x, weight])
    want = torch.autograd.grad(F.linear(tokens.float(), weight).mean(), [x, weight])
    for got, expected in zip(gradients, want):
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-4)


@needs_library
def test_a_token_that_is_not_finite_stays_in_its_channels() -> None:
    x, weight, bias = make_inputs((3, 17), 18)
    weights = torch.ones(3, 18).bfloat16()
    weights[2, 4] = float('nan')
    with torch.no_grad():
        x[1, 16] = float('inf')
    _, grad_weight, grad_bias = torch.autograd.grad(linear(x, weight, bias), [x, weight, bias], weights)
    assert grad_weight[4].isnan().all() and grad_bias.isnan().nonzero().tolist() == [[4]]
    others = torch.arange(18) != 4
    assert grad_weight[others][:, :16].isfinite().all() and grad_weight[others][:, 16].isinf().all()


@needs_library
def test_is_the_same_for_any_number_of_threads() -> None:
    inputs = make_inputs((1500, 72), 200)
    check_any_number_of_threads(lambda: output_and_gradients(inputs))


@needs_library
def test_operator_is_registered_as_torch_expects() -> None:
    for bias in (True, False):
        x, weight, parameter = make_inputs((2, 3, 24), 8)
        torch.library.opcheck(torch.ops.bioattn_mm.linear.default, [x, weight, parameter if bias else None])


@pytest.mark.parametrize('needs_gradient', [True, False])
def test_layer_is_pytorchs_layer(needs_gradient: bool) -> None:
    layer, x = Linear(24, 8), torch.randn(5, 24)
    assert isinstance(layer, torch.nn.Linear) and list(layer.state_dict()) == ['weight', 'bias']
    layer.requires_grad_(needs_gradient)
    assert torch.equal(layer(x), torch.nn.Linear.forward(layer, x))
    with torch.autocast('cpu', torch.bfloat16):
        output = layer(x)
        assert output.dtype == torch.bfloat16
        torch.testing.assert_close(output, torch.nn.Linear.forward(layer, x))
